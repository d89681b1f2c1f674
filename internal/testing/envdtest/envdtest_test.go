package envdtest_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLies(t *testing.T) {
	t.Parallel()
	host := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	for _, name := range envdtest.Lies() {
		if !host.MatchString(name) || len(name) > 63 {
			t.Errorf("%q cannot be a host name", name)
		}
	}
	if envdtest.New("no-such-lie") != nil {
		t.Error("something came of a lie that is not there")
	}
}

// TestCloseEndsEveryAnswer asks each lie one question and hears only the head.
func TestCloseEndsEveryAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"silence", "body-endless", "upload-unread", "switch-silent", "head-endless"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			liar := envdtest.New(name)
			server := httptest.NewServer(liar)
			asked := make(chan struct{})
			go func() {
				defer close(asked)
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/files", http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				transport := &http.Transport{MaxResponseHeaderBytes: 64 << 10}
				defer transport.CloseIdleConnections()
				if res, err := transport.RoundTrip(r); err == nil {
					_ = res.Body.Close()
				}
			}()
			liar.Close()
			server.Close()
			<-asked
		})
	}
}
