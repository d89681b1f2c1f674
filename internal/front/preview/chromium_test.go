package preview_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// screenshotVariable is a file to which a picture of the preview is written.
const screenshotVariable = "SANDPIT_TEST_SCREENSHOT"

// TestChromium has a real browser open a preview of a real sandbox by host name and by
// path, and its page speak with the program by a WebSocket.
func TestChromium(t *testing.T) {
	t.Parallel()
	r := realRig(t)
	id := r.realBox()
	b := newBrowser(t)
	u, err := r.gateway.URL(r.as(alice), id, appPort, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{u.URL, u.PathURL} {
		p := b.open(url)
		p.until("document.title", "answered hello")
		if at := p.eval("location.href"); strings.Contains(at, "token") || !strings.HasPrefix(url, at) {
			t.Errorf("%s has led to %s", url, at)
		}
		if got := p.eval("document.cookie"); got != "" {
			t.Errorf("the page sees the cookie %q", got)
		}
		if got := p.eval("getComputedStyle(document.body).backgroundColor"); got != "rgb(230, 245, 230)" {
			t.Errorf("colour %s: the style sheet was not loaded", got)
		}
		png := p.screenshot()
		if len(png) < 1000 {
			t.Errorf("a picture of %d bytes", len(png))
		}
		if file := os.Getenv(screenshotVariable); file != "" && url == u.URL {
			if err := os.WriteFile(file, png, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	private := b.open(r.hostURL(id, appPort+1))
	private.until("document.querySelector('h1')?.textContent", "This preview is private")
	testViewer(t, r, b.open(u.URL), u.PathURL)
}

// testViewer has the script of a page in a sandbox try to use what its viewer may do
// elsewhere: the API of a server that asks programs of this machine for no key.
func testViewer(t *testing.T, r *rig, p *page, pathURL string) {
	t.Helper()
	p.until("document.title", "answered hello")
	before := len(r.manager.List(manager.Filter{}))
	second := r.realBox()
	api := "http://localhost:" + portOf(r.main)
	fetches := func(url, options string) string {
		return fmt.Sprintf(`fetch(%q, %s).then(r => r.type + " " + r.status, e => "refused")`, url, options)
	}
	for _, base := range []string{api, "http://" + r.main} {
		for name, tc := range map[string]struct{ script, want string }{
			"read":            {fetches(base+"/v1/sandboxes", "{}"), "refused"},
			"read as it may":  {fetches(base+"/v1/sandboxes", "{mode: 'no-cors', credentials: 'include'}"), "refused"}, // by Cross-Origin-Resource-Policy
			"make":            {fetches(base+"/v1/sandboxes", "{method: 'POST', body: '{}', headers: {'Content-Type': 'application/json'}}"), "refused"},
			"make, simply":    {fetches(base+"/v1/sandboxes", "{method: 'POST', mode: 'no-cors', body: '{}'}"), "refused"},
			"delete":          {fetches(base+"/v1/sandboxes/"+string(second), "{method: 'DELETE'}"), "refused"},
			"by header":       {fetches(base+"/", fmt.Sprintf("{headers: {'E2b-Sandbox-Id': %q, 'E2b-Sandbox-Port': '8000'}}", second)), "refused"},
			"guest by header": {fetches(base+"/health", fmt.Sprintf("{headers: {'E2b-Sandbox-Id': %q, 'E2b-Sandbox-Port': '49983'}}", second)), "refused"},
			"terminal": {fmt.Sprintf(`new Promise(done => {
				const ws = new WebSocket("ws" + %q.slice(4) + "/v1/sandboxes/%s/terminal");
				ws.onopen = () => done("open"); ws.onerror = () => done("refused");
			})`, base, second), "refused"},
			"form": {fmt.Sprintf(`new Promise(done => {
				const frame = document.createElement("iframe"); frame.name = "f"; document.body.append(frame);
				const form = document.createElement("form");
				Object.assign(form, {method: "POST", enctype: "text/plain", action: "%s/v1/sandboxes", target: "f"});
				const field = document.createElement("input"); Object.assign(field, {name: '{"spec":{"name":"', value: 'x"}}'}); form.append(field);
				document.body.append(form);
				const look = () => { let text; try { text = frame.contentDocument.body.innerText; } catch (e) {} ; done(text ? "read" : "refused") };
				frame.onload = look; setTimeout(look, 2000); // whether it was made is seen below
				form.submit();
			})`, base), "refused"},
		} {
			if got := p.eval(bounded(tc.script)); got != tc.want {
				t.Errorf("%s at %s: %s, want %s", name, base, got, tc.want)
			}
		}
	}
	// Another preview that its viewer has open, whether by host name or by path.
	other, err := r.gateway.URL(r.as(alice), second, appPort, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	q := p.open(other.URL)
	q.until("document.title", "answered hello")
	for _, url := range []string{r.hostURL(second, appPort) + "/", pathURL[:strings.IndexByte(pathURL, '?')]} {
		for _, options := range []string{"{credentials: 'include'}", "{credentials: 'include', method: 'POST', mode: 'cors', body: 'x'}"} {
			if got := p.eval(bounded(fetches(url, options))); got != "refused" {
				t.Errorf("%s, %s: %s", url, options, got)
			}
		}
	}
	if got := p.eval(fmt.Sprintf(bounded(`new Promise(done => {
		const ws = new WebSocket("ws://%s/ws"); ws.onopen = () => done("open"); ws.onerror = () => done("refused");
	})`), r.host(second, appPort))); got != "refused" {
		t.Errorf("WebSocket of another preview: %s", got)
	}
	list := r.manager.List(manager.Filter{})
	if len(list) != before+1 {
		t.Errorf("%d sandboxes, want %d: %+v", len(list), before+1, list)
	}
}

// bounded is a script that comes to an end.
func bounded(script string) string {
	return `Promise.race([` + script + `, new Promise(done => setTimeout(done, 20000, "silence"))])`
}
