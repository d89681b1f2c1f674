package preview_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// visited is a program whose requests a test looks at.
type visited struct {
	mu   sync.Mutex
	seen []string
}

// serve answers with a page that says what it is, or with a redirect to where it is asked for.
func (v *visited) serve(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		v.seen = append(v.seen, r.Method+" "+r.URL.Path+" "+r.Header.Get("Cookie"))
		v.mu.Unlock()
		for _, header := range []string{"Location", "Refresh"} {
			if to := r.URL.Query().Get(header); to != "" {
				w.Header().Set(header, to)
			}
		}
		if w.Header().Get("Location") != "" {
			w.WriteHeader(http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<title>"+name+"</title><p>page of "+name+"</p>")
	}
}

// has reports whether the program has seen a request that contains a text.
func (v *visited) has(text string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, line := range v.seen {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// neighbours are two sandboxes of which a viewer has a private preview open each.
type neighbours struct {
	*rig

	evil, victim         sandpit.ID
	evilPort, victimPort int
	evilApp, victimApp   visited
}

func newNeighbours(tb testing.TB, domain string) *neighbours {
	tb.Helper()
	n := &neighbours{rig: newRigAt(tb, domain)}
	n.evil, n.victim = n.box(), n.box()
	n.evilPort, n.victimPort = app(tb, n.evilApp.serve("alice")), app(tb, n.victimApp.serve("bob"))
	return n
}

// visit opens the preview of a sandbox as a visitor with its URL.
func (n *neighbours) open(b *browser, id sandpit.ID, port int, title string, byPath bool) *page {
	n.Helper()
	u, err := n.gateway.URL(n.as(alice), id, port, 0, "")
	if err != nil {
		n.Fatal(err)
	}
	p := b.open(map[bool]string{false: u.URL, true: u.PathURL}[byPath])
	p.until("document.title", title)
	return p
}

// TestChromiumRedirects has the page of one sandbox try to read another's by path, which has
// the same origin, through redirects: of its own program and of another site.
func TestChromiumRedirects(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a browser's time")
	}
	n := newNeighbours(t, "localhost")
	b := newBrowser(t)
	p := n.open(b, n.evil, n.evilPort, "alice", true)
	n.open(b, n.victim, n.victimPort, "bob", true)
	prefix := fmt.Sprintf("/p/%s/%d/", n.victim, n.victimPort)
	address := portOf(n.paths)
	other := app(t, func(w http.ResponseWriter, r *http.Request) { // of another origin, which may send a browser anywhere
		http.Redirect(w, r, "http://"+n.paths+prefix+"outside"+r.URL.Query().Get("as"), http.StatusFound)
	})
	links := map[string]string{
		"relative": "../../" + string(n.victim) + "/" + strconv.Itoa(n.victimPort) + "/relative", "absolute": prefix + "absolute",
		"own prefix": fmt.Sprintf("/p/%s/%d/../../..%sprefix", n.evil, n.evilPort, prefix), "encoded": fmt.Sprintf("/p/%s/%d/%%2e%%2e/.%%2e/%%2E%%2e%sencoded", n.evil, n.evilPort, prefix),
		"short address": "http://127.1:" + address + prefix + "short", "number": "http://2130706433:" + address + prefix + "number",
		"same address": "http://" + n.paths + prefix + "same", "no scheme": "//" + n.paths + prefix + "scheme", "user": "http://x@" + n.paths + prefix + "user",
		"backslashes": strings.ReplaceAll(prefix, "/", `\`) + "backslash", "another site": fmt.Sprintf("http://localhost:%d/", other),
	}
	own := n.pathURL(n.evil, n.evilPort) + "/"
	var tries []string // each comes to what was read, or to nothing
	for _, to := range links {
		target := own + "?Location=" + url.QueryEscape(to)
		tries = append(tries, fmt.Sprintf(`fetch(%q).then(r => r.text(), e => "refused")`, target),
			frameLater(fmt.Sprintf(`f.src = %q;`, target)), frameLater(fmt.Sprintf(`f.src = %q;`, own+"?Refresh="+url.QueryEscape("0; url="+to))),
			frameLater(fmt.Sprintf(`f.name = "x" + Math.random();
				const form = document.createElement("form"); Object.assign(form, {method: "POST", action: %q, target: f.name}); document.body.append(form); form.submit();`, target)))
	}
	got := p.eval(bounded(`Promise.all([` + strings.Join(tries, ",\n") + `]).then(all => all.join("\n"))`))
	if strings.Contains(got, "bob") || !strings.Contains(got, "page of alice") {
		t.Errorf("alice's page reads %q", got)
	}
	for name, to := range links { // with a hold of the window, which a person may see
		if name == "another site" {
			to = fmt.Sprintf("http://localhost:%d/?as=window", other)
		}
		if got := p.eval(windowLater(own + "?Location=" + url.QueryEscape(to))); strings.Contains(got, "bob") {
			t.Errorf("%s: alice's page reads %q in a window", name, got)
		}
	}
	// A document that leads there by itself.
	for how, script := range map[string]string{
		"meta refresh": fmt.Sprintf(`<meta http-equiv="refresh" content="0;url=%s">`, prefix+"meta"),
		"base":         fmt.Sprintf(`<base href="%s"><script>fetch("based").then(r => r.text()).then(x => { document.title = x }, () => 0)</script>`, prefix),
	} {
		got := p.eval(bounded(fmt.Sprintf(`new Promise(done => {
			const f = document.createElement("iframe"); f.srcdoc = %q; document.body.append(f);
			setTimeout(() => { let text = ""; try { text = f.contentDocument.title + f.contentDocument.body.innerText; } catch (e) {} f.remove(); done(text); }, 500);
		})`, script)))
		if strings.Contains(got, "bob") {
			t.Errorf("%s: alice's page reads %q", how, got)
		}
	}
	for _, path := range []string{"/relative", "/same", "/short", "/outside", "/meta", "/based"} {
		if n.victimApp.has(" " + path + " ") {
			t.Errorf("bob's program was asked for %s", path)
		}
	}
	// Its own pages continue to work.
	if got := p.eval(bounded(fmt.Sprintf(`fetch(%q).then(r => r.text())`, own+"?Location="+url.QueryEscape("sub/../x?y=1")))); !strings.Contains(got, "page of alice") {
		t.Errorf("a redirect to itself: %q", got)
	}
}

// windowLater is a script that opens a window and comes to what is there later, as far as
// a visitor that opens it sees that.
func windowLater(target string) string {
	return fmt.Sprintf(`new Promise(done => {
		const w = window.open(%q);
		let last = "no window";
		const timer = setInterval(() => { try { last = w ? w.document.body.innerText : last; } catch (e) { last = "refused"; } }, 20);
		setTimeout(() => { clearInterval(timer); w?.close(); done(last); }, 400);
	})`, target)
}

// frameLater is a script that loads something into a frame and comes to what is there later.
func frameLater(load string) string {
	return `new Promise(done => {
		const f = document.createElement("iframe"); document.body.append(f); ` + load + `
		let last = "";
		const timer = setInterval(() => { try { last = f.contentDocument ? f.contentDocument.body.innerText : last; } catch (e) {} }, 20);
		setTimeout(() => { clearInterval(timer); f.remove(); done(last); }, 3000);
	})`
}

// TestChromiumDomain has the page of one sandbox try to reach another's private preview, by
// host names of a domain over HTTP: the browser takes both for one site, and says in no
// header which page a request is from but in those of old.
func TestChromiumDomain(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a browser's time")
	}
	n := newNeighbours(t, "preview.test")
	b := newBrowser(t, "--host-resolver-rules=MAP *.preview.test 127.0.0.1")
	p := n.open(b, n.evil, n.evilPort, "alice", false)
	bob := n.open(b, n.victim, n.victimPort, "bob", false)
	at := n.hostURL(n.victim, n.victimPort)
	if got := bob.eval("document.cookie"); got != "" {
		t.Errorf("bob's page sees the cookies %q", got)
	}
	for name, script := range map[string]string{
		"fetch":              fmt.Sprintf(`fetch(%q, {mode: "no-cors", credentials: "include"}).then(r => r.text(), e => "refused")`, at+"/evil-fetch"),
		"fetch, no referrer": fmt.Sprintf(`fetch(%q, {mode: "no-cors", credentials: "include", referrerPolicy: "no-referrer"}).then(r => r.text(), e => "refused")`, at+"/evil-silent"),
		"picture": fmt.Sprintf(`new Promise(done => { const i = new Image(); i.referrerPolicy = "no-referrer"; i.onload = () => done("loaded"); i.onerror = () => done("refused"); i.src = %q; })`,
			at+"/evil-picture"),
		"frame":              frameAndRead(at + "/evil-frame"),
		"frame, no referrer": strings.Replace(frameAndRead(at+"/evil-silent-frame"), `f.src =`, `f.referrerPolicy = "no-referrer"; f.src =`, 1),
		"form": fmt.Sprintf(`new Promise(done => {
			const f = document.createElement("iframe"); f.name = "form"; document.body.append(f);
			const form = document.createElement("form"); Object.assign(form, {method: "POST", action: %q, target: "form"}); document.body.append(form); form.submit();
			setTimeout(() => done("sent"), 500);
		})`, at+"/evil-form"),
		"get form": fmt.Sprintf(`new Promise(done => {
			const f = document.createElement("iframe"); f.name = "get"; document.body.append(f);
			const form = document.createElement("form"); Object.assign(form, {method: "GET", action: %q, target: "get"}); document.body.append(form); form.submit();
			setTimeout(() => done("sent"), 500);
		})`, at+"/evil-get-form"),
		"beacon": fmt.Sprintf(`String(navigator.sendBeacon(%q))`, at+"/evil-beacon"),
		"WebSocket": fmt.Sprintf(`new Promise(done => { const ws = new WebSocket("ws" + %q.slice(4)); ws.onopen = () => done("open"); ws.onerror = () => done("refused"); })`,
			at+"/evil-socket"),
	} {
		if got := p.eval(bounded(script)); strings.Contains(got, "bob") || got == "loaded" || got == "open" {
			t.Errorf("%s: %s", name, got)
		}
	}
	p.eval("new Promise(done => setTimeout(done, 500))")
	if n.victimApp.has("/evil") {
		t.Errorf("requests of alice's page have reached bob's program: %q", n.victimApp.seen)
	}
	// A person may follow a link, whatever the page says of referrers, and bob's own page continues to work.
	for _, rel := range []string{"", "noreferrer"} {
		target := at + "/link" + rel + "?a=1#part"
		q := n.open(b, n.evil, n.evilPort, "alice", false)
		q.eval(fmt.Sprintf(`(() => { const a = document.createElement("a"); Object.assign(a, {href: %q, rel: %q}); document.body.append(a); setTimeout(() => a.click(), 0); })()`, target, rel))
		q.until("document.title", "bob")
		if got := q.eval("location.href"); got != target {
			t.Errorf("a link %q leads to %s, want %s", rel, got, target)
		}
	}
	for name, options := range map[string]string{"its own": "{}", "its own, posted": "{method: 'POST', body: 'x'}"} {
		if got := bob.eval(bounded(fmt.Sprintf(`fetch("/own", %s).then(r => r.text(), e => "refused")`, options))); !strings.Contains(got, "page of bob") {
			t.Errorf("%s: %s", name, got)
		}
	}
	testTossedCookies(t, n, b, p)
}

// testTossedCookies has a page set so many cookies for the parent of all previews that no
// program would take them, and sees that these go away.
func testTossedCookies(t *testing.T, n *neighbours, b *browser, p *page) {
	t.Helper()
	p.eval(`for (let i = 0; i < 60; i++) document.cookie = "toss" + i + "=" + "x".repeat(4000) + "; domain=preview.test; path=/"`)
	q := b.open(n.hostURL(n.victim, n.victimPort) + "/tossed")
	q.until("document.title", "bob")
	if !n.victimApp.has("/tossed ") {
		t.Error("bob's program was not asked")
	}
	for range 8 { // some go with each answer
		q.eval(`fetch("/tossed").then(r => r.text())`)
	}
	if got := q.eval(`String(document.cookie.split("; ").filter(x => x.startsWith("toss")).length < 4)`); got != "true" {
		t.Errorf("cookies are left: %.200s", q.eval("document.cookie"))
	}
	for range 3 { // and what is left is bounded
		q.eval(`document.cookie = "own=1"`)
		q.eval(`fetch("/own-cookie").then(r => r.text())`)
	}
	if !n.victimApp.has("own=1") {
		t.Error("bob's program does not see its own cookie")
	}
}
