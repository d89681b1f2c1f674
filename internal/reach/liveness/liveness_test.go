package liveness_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func silentProbe(ctx context.Context, asked func()) error {
	asked()
	<-ctx.Done()
	return ctx.Err()
}

var bounds = liveness.Options{
	Quiet: 10 * time.Millisecond, Interval: 10 * time.Millisecond, Patience: 100 * time.Millisecond, Recheck: 20 * time.Millisecond,
}

// TestFindings has a guest be asked, and looks at what becomes of a call that waits for it.
func TestFindings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		probe liveness.Probe
		limit time.Duration
		ends  bool
	}{
		"silent":           {silentProbe, 0, true},
		"silent, it says":  {func(context.Context, func()) error { return liveness.ErrSilent }, 0, true},
		"there":            {func(context.Context, func()) error { return nil }, 0, false},
		"there, but late":  {func(context.Context, func()) error { return nil }, 50 * time.Millisecond, true},
		"paused":           {func(context.Context, func()) error { return sandpit.Conflict }, 0, false},
		"paused, and late": {func(context.Context, func()) error { return sandpit.Conflict }, 50 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			why := make(chan error, 1)
			done := liveness.New("a", tc.probe, bounds).Watch(t.Context(), tc.limit, func(err error) { why <- err })
			defer done()
			wait := 10 * time.Second
			if !tc.ends {
				wait = time.Second
			}
			select {
			case err := <-why:
				if !tc.ends || sandpit.CodeOf(err) != sandpit.Unavailable || sandpit.HintOf(err) == "" {
					t.Errorf("it ended: %v", err)
				}
			case <-time.After(wait):
				if tc.ends {
					t.Error("it did not end")
				}
			}
		})
	}
}

// TestExempt: what the caller bounds is not watched.
func TestExempt(t *testing.T) {
	t.Parallel()
	done := liveness.New("a", silentProbe, bounds).Watch(liveness.Exempt(t.Context()), time.Nanosecond, func(err error) { t.Error(err) })
	time.Sleep(300 * time.Millisecond)
	done()
}

// TestProbeEnds: a probe ends with the last call that it is for.
func TestProbeEnds(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	asking := make(chan struct{})
	done := liveness.New("a", func(ctx context.Context, _ func()) error {
		close(asking)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}, bounds).Watch(t.Context(), 0, func(error) {})
	<-asking
	done()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the probe continues")
	}
}

// FuzzFrames passes a stream of two messages in pieces.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("first"), []byte{}, uint8(1))
	f.Add([]byte{}, []byte("second"), uint8(7))
	f.Fuzz(func(t *testing.T, first, second []byte, piece uint8) {
		var all []byte
		for _, m := range [][]byte{first, second} {
			all = append(binary.BigEndian.AppendUint32(append(all, 0), uint32(len(m))), m...)
		}
		var frames liveness.Frames
		ends := 0
		size := min(int(piece%4)+1, 5) // never two messages at once
		for len(all) > 0 {
			n := min(size, len(all))
			if frames.Pass(all[:n]) {
				ends++
			}
			all = all[n:]
		}
		if ends != 2 || !frames.Between() {
			t.Errorf("%d messages ended, between them: %v", ends, frames.Between())
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestKeyOfTheMoment has the caller change the header when there is a connection, as it does
// when the guest has woken with another key.
func TestKeyOfTheMoment(t *testing.T) {
	t.Parallel()
	monitor := liveness.New("a", silentProbe, bounds)
	for _, contentType := range []string{"application/connect+proto", "application/proto"} {
		header := http.Header{"Content-Type": {contentType}, "X-Key": {"before"}}
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { header.Set("X-Key", "now") },
		})
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		var sent string
		res, err := monitor.Guest(roundTrip(func(r *http.Request) (*http.Response, error) {
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
			sent = r.Header.Get("X-Key")
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil || sent != "now" {
			t.Errorf("%s: sent %q, %v", contentType, sent, err)
		}
	}
}
