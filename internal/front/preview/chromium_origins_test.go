package preview_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestChromiumOrigins has the page of one sandbox try to get at another sandbox's page,
// which the same viewer has open, by what browsers let pages do to each other.
func TestChromiumOrigins(t *testing.T) {
	t.Parallel()
	r := realRig(t)
	b := newBrowser(t)
	evil, other := r.realBox(), r.realBox()
	host, path := r.visit(b, evil, false), r.visit(b, evil, true)
	r.visit(b, other, false)
	r.visit(b, other, true)
	otherHost, otherPath := r.hostURL(other, appPort)+"/", r.pathURL(other, appPort)+"/"

	t.Run("windows", func(t *testing.T) {
		for _, url := range []string{otherHost, otherPath, "http://" + r.main + "/v1/sandboxes"} {
			if got := host.eval(bounded(openAndRead(url))); got != "refused" {
				t.Errorf("%s in a window of its own: %s", url, got)
			}
		}
	})
	t.Run("frames", func(t *testing.T) {
		for _, url := range []string{otherHost, "http://" + r.main + "/v1/sandboxes"} {
			if got := host.eval(bounded(frameAndRead(url))); got != "refused" {
				t.Errorf("%s in a frame: %s", url, got)
			}
		}
	})
	t.Run("cookies", func(t *testing.T) {
		// A cookie for all names below the domain, and ours for a path of another's.
		host.eval(`document.cookie = "tossed=1; domain=localhost; path=/"; document.cookie = "sandpit_preview=spv_evil; domain=localhost; path=/"`)
		path.eval(fmt.Sprintf(`document.cookie = "sandpit_preview=spv_evil; path=/p/%s/%d/"; document.cookie = "sandpit_preview=spv_evil; path=/p/%[1]s/%[2]d/app.js"`, other, appPort))
		for _, url := range []string{otherHost, otherPath} {
			p := b.open(url)
			p.until("document.title", "answered hello")
			if got := p.eval("document.cookie"); strings.Contains(got, "tossed") {
				t.Errorf("%s: cookies %q", url, got)
			}
		}
	})
	t.Run("workers", func(t *testing.T) {
		register := func(scope string) string {
			return bounded(fmt.Sprintf(`navigator.serviceWorker.register("sw.js", {scope: %q}).then(() => "registered", () => "refused")`, scope))
		}
		own := fmt.Sprintf("/p/%s/%d/", evil, appPort)
		for _, scope := range []string{"/", "/p/", fmt.Sprintf("/p/%s/%d/", other, appPort), own + "../"} {
			if got := path.eval(register(scope)); got != "refused" {
				t.Errorf("a worker for %s: %s", scope, got)
			}
		}
		if got := path.eval(register(own)); got != "refused" {
			t.Errorf("a worker for its own pages, which would be told of all others: %s", got)
		}
		if got := host.eval(register("/")); got != "registered" {
			t.Errorf("a worker for its own pages by host name: %s", got)
		}
		p := b.open(otherPath)
		p.until("document.title", "answered hello")
		if got := p.eval("String(navigator.serviceWorker.controller)"); got != "null" {
			t.Errorf("a worker of another sandbox has the page: %s", got)
		}
	})
}

// TestChromiumPaths has the page of one sandbox try to get at another's by path, which has
// the same origin; what it does to its own must go on working.
func TestChromiumPaths(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a browser's time")
	}
	r := realRig(t)
	b := newBrowser(t)
	evil, other := r.realBox(), r.realBox()
	p := r.visit(b, evil, true)
	r.visit(b, other, true)
	own, others := r.pathURL(evil, appPort)+"/", r.pathURL(other, appPort)+"/"
	fetches := func(url, options string) string {
		return fmt.Sprintf(`fetch(%q, %s).then(r => "answered", e => "refused")`, url, options)
	}
	socket := func(url string) string {
		return fmt.Sprintf(`new Promise(done => {
			const ws = new WebSocket("ws" + %q.slice(4) + "ws"); ws.onopen = () => done("answered"); ws.onerror = () => done("refused");
		})`, url)
	}
	frame := func(url string) string { return strings.Replace(frameAndRead(url), `"read " +`, `"answered" || `, 1) }
	form := func(url string) string {
		return fmt.Sprintf(`new Promise(done => {
			document.addEventListener("securitypolicyviolation", e => done("refused"), {once: true});
			const frame = document.createElement("iframe"); frame.name = "form" + Math.random(); document.body.append(frame);
			const form = document.createElement("form"); Object.assign(form, {method: "POST", action: %q, target: frame.name}); document.body.append(form);
			frame.onload = () => { if (frame.contentWindow.location.href != "about:blank") done("answered") };
			form.submit();
		})`, url)
	}
	for name, tc := range map[string]func(string) string{
		"fetch":     func(url string) string { return fetches(url, "{}") },
		"post":      func(url string) string { return fetches(url, "{method: 'POST', body: 'x'}") },
		"referrer":  func(url string) string { return fetches(url, fmt.Sprintf("{referrer: %q}", url)) },
		"opaque":    func(url string) string { return fetches(url, "{mode: 'no-cors'}") },
		"WebSocket": socket, "frame": frame, "form": form,
		"fetch of a frame": func(url string) string {
			return `new Promise(done => {
				const f = document.createElement("iframe"); f.srcdoc = "<p>"; f.onload = () => done(f.contentWindow.` + fetches(url, "{}") + `); document.body.append(f);
			})`
		},
		"fetch of a worker": func(url string) string {
			return `new Promise(done => {
				const w = new Worker(URL.createObjectURL(new Blob(['` + fetches(url, "{}") + `.then(x => postMessage(x))'])));
				w.onmessage = e => done(e.data); w.onerror = () => done("refused");
			})`
		},
		"fetch after a change of address": func(url string) string {
			return fmt.Sprintf(`(history.pushState(null, "", %q), `, url) + fetches(url, "{}") + fmt.Sprintf(`.finally(() => history.pushState(null, "", %q)))`, own)
		},
	} {
		for url, want := range map[string]string{own: "answered", others: "refused"} {
			if got := p.eval(bounded(tc(url))); got != want {
				t.Errorf("%s of %s: %s, want %s", name, url, got, want)
			}
		}
	}
	if got := p.eval(bounded(openAndRead(others))); got != "refused" {
		t.Errorf("in a window of its own: %s", got)
	}
}

// visit opens the URL of a sandbox's port as a visitor.
func (r *rig) visit(b *browser, id sandpit.ID, byPath bool) *page {
	r.Helper()
	u, err := r.gateway.URL(r.as(alice), id, appPort, 0, "")
	if err != nil {
		r.Fatal(err)
	}
	url := u.URL
	if byPath {
		url = u.PathURL
	}
	p := b.open(url)
	p.until("document.title", "answered hello")
	return p
}

// openAndRead is a script that opens a window and reads from it as soon as it shows a page of another
// origin. Until then it shows an empty page, which its opener may read.
func openAndRead(url string) string {
	return fmt.Sprintf(`new Promise(done => {
		const w = window.open(%q);
		if (!w) { done("no window"); return; }
		const look = setInterval(() => {
			try {
				if (w.location.href == "about:blank") return;
				done("read " + w.document.body.innerText);
			} catch (e) { done("refused"); }
			clearInterval(look); w.close();
		}, 20);
	})`, url)
}

// frameAndRead does the same with a frame.
func frameAndRead(url string) string {
	return fmt.Sprintf(`new Promise(done => {
		const f = document.createElement("iframe");
		f.onload = () => {
			try { done(f.contentDocument ? "read " + f.contentDocument.body.innerText : "refused"); } catch (e) { done("refused"); }
		};
		f.src = %q; document.body.append(f);
	})`, url)
}
