package daytona_test

import (
	"net/http"
	"strings"
	"testing"
)

// foreignCalls are all calls that name something of an owner.
var foreignCalls = []struct{ call, body string }{
	{"GET /sandbox/{sandbox}", ""},
	{"GET /sandbox/{name}", ""},
	{"DELETE /sandbox/{sandbox}", ""},
	{"DELETE /sandbox/{name}", ""},
	{"POST /sandbox/{sandbox}/start", ""},
	{"POST /sandbox/{sandbox}/stop", ""},
	{"POST /sandbox/{sandbox}/pause", ""},
	{"POST /sandbox/{sandbox}/archive", ""},
	{"POST /sandbox/{sandbox}/recover", ""},
	{"POST /sandbox/{sandbox}/resize", `{"cpu":2}`},
	{"POST /sandbox/{sandbox}/fork", `{}`},
	{"POST /sandbox/{sandbox}/snapshot", `{"name":"stolen"}`},
	{"POST /sandbox/{sandbox}/autostop/1", ""},
	{"POST /sandbox/{sandbox}/autopause/1", ""},
	{"POST /sandbox/{sandbox}/autoarchive/1", ""},
	{"POST /sandbox/{sandbox}/autodelete/1", ""},
	{"POST /sandbox/{sandbox}/ttl/1", ""},
	{"PUT /sandbox/{sandbox}/labels", `{"labels":{"a":"b"}}`},
	{"POST /sandbox/{sandbox}/public/true", ""},
	{"POST /sandbox/{sandbox}/network-settings", `{"networkBlockAll":true}`},
	{"POST /sandbox/{sandbox}/last-activity", ""},
	{"GET /sandbox/{sandbox}/toolbox-proxy-url", ""},
	{"GET /sandbox/{sandbox}/build-logs-url", ""},
	{"GET /sandbox/{sandbox}/build-logs", ""},
	{"POST /sandbox/{sandbox}/ssh-access", ""},
	{"DELETE /sandbox/{sandbox}/ssh-access", ""},
	{"GET /sandbox/{sandbox}/signing-key", ""},
	{"POST /sandbox/{sandbox}/signing-key/rotate", ""},
	{"GET /sandbox/{sandbox}/ports/80/preview-url", ""},
	{"GET /sandbox/{sandbox}/ports/80/signed-preview-url", ""},
	{"POST /sandbox/{sandbox}/ports/80/signed-preview-url/good/expire", ""},
	{"GET /snapshots/{snapshot}", ""},
	{"GET /snapshots/saved", ""},
	{"DELETE /snapshots/{snapshot}", ""},
	{"POST /snapshots/{snapshot}/activate", ""},
	{"GET /snapshots/{snapshot}/build-logs-url", ""},
	{"GET /snapshots/{snapshot}/build-logs", ""},
	{"GET /volumes/{volume}", ""},
	{"GET /volumes/by-name/data", ""},
	{"DELETE /volumes/{volume}", ""},
	{"POST /sandbox", `{"snapshot":"{snapshot}"}`},
	{"POST /sandbox", `{"snapshot":"saved"}`},
	{"POST /sandbox", `{"volumes":[{"volumeId":"{volume}","mountPath":"/data"}]}`},
	{"POST /sandbox", `{"volumes":[{"volumeId":"data","mountPath":"/data"}]}`},
}

// TestOwners hides what an owner has from another one: every call answers as for something that
// does not exist.
func TestOwners(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"data"}`).want(t, http.StatusOK, `"state":"ready"`)
	var volume, snapshot struct{ ID string }
	r.do(t, r.Ann, http.MethodGet, "/volumes/by-name/data", "").Decode(t, &volume)
	made := r.made(t, `{"name":"hers","labels":{"a":"1"}}`)
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+made.ID+"/snapshot", `{"name":"saved"}`).want(t, http.StatusOK, "started")
	r.do(t, r.Ann, http.MethodGet, "/snapshots/saved", "").Decode(t, &snapshot)
	before := r.do(t, r.Ann, http.MethodGet, "/sandbox/"+made.ID, "").Body
	theirs := strings.NewReplacer("{sandbox}", made.ID, "{name}", "hers", "{snapshot}", snapshot.ID, "{volume}", volume.ID)
	missing := strings.NewReplacer("{sandbox}", "s"+strings.Repeat("0", 19), "{name}", "nothing", "{snapshot}", "snap"+strings.Repeat("a", 16),
		"{volume}", "v"+strings.Repeat("0", 19), "/saved", "/other", `"saved"`, `"other"`, "by-name/data", "by-name/else", `"data"`, `"else"`)
	for _, c := range foreignCalls {
		t.Run(c.call+c.body, func(t *testing.T) {
			send := func(r2 *strings.Replacer) got {
				method, path, _ := strings.Cut(r2.Replace(c.call), " ")
				return r.do(t, r.Bob, method, path, r2.Replace(c.body))
			}
			g, other := send(theirs), send(missing)
			g.want(t, http.StatusNotFound, "not found")
			other.want(t, http.StatusNotFound, "not found")
		})
	}
	for _, path := range []string{"/sandbox", "/sandbox/paginated", "/snapshots", "/volumes"} {
		if g := r.do(t, r.Bob, http.MethodGet, path, ""); g.Status != http.StatusOK || strings.Contains(g.Body, made.ID) || strings.Contains(g.Body, "hers") ||
			strings.Contains(g.Body, "saved") || strings.Contains(g.Body, `"data"`) {
			t.Errorf("%s: bob sees %s", path, g.Body)
		}
	}
	var access struct{ Token string }
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+made.ID+"/ssh-access", "").Decode(t, &access)
	r.do(t, r.Bob, http.MethodGet, "/sandbox/ssh-access/validate?token="+access.Token, "").want(t, http.StatusOK, `"valid":false`)
	if after := r.do(t, r.Ann, http.MethodGet, "/sandbox/"+made.ID, "").Body; after != before {
		t.Errorf("bob has changed the sandbox:\n%s\n%s", before, after)
	}
	// Names are unique for an owner only.
	r.do(t, r.Bob, http.MethodPost, "/sandbox", `{"name":"hers"}`).want(t, http.StatusOK, "started")
}
