package e2b

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const someHash = "0123456789abcdef0123456789abcdef"

// TestLinks has links be good for what they were given for, and for a while.
func TestLinks(t *testing.T) {
	t.Parallel()
	u, now := newLinkSigner(), time.Now()
	ann := api.Principal{Owner: "ann", KeyID: "key"}
	good := u.signLink(ann, someHash, now.Add(time.Hour))
	for query, want := range map[string]bool{
		good: true, "": false, strings.Replace(good, someHash, strings.Repeat("b", 32), 1): false,
		u.signLink(ann, someHash, now.Add(-2*time.Second)):           false,
		newLinkSigner().signLink(ann, someHash, now.Add(time.Hour)):  false,
		strings.Replace(good, "owner=", "owner=Ym9i&was=", 1):        false,
		strings.Replace(good, "key=", "key=&was=", 1):                false,
		strings.Replace(good, "until=", "until=99999999999&was=", 1): false,
	} {
		l, err := u.checkLink(httptest.NewRequestWithContext(t.Context(), http.MethodPut, PathUpload+"?"+query, nil), now)
		if ok := err == nil; ok != want || ok && (l.Name != (uploads.Name{Owner: "ann", Hash: someHash}) || l.key != "key") {
			t.Errorf("%s: %v %v", query, l, err)
		}
	}
}
