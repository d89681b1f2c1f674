package preview

import (
	_ "embed"
	"errors"
	"html/template"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

//go:embed page.html
var pageText string

// page is for people; it has no links and no scripts.
var page = template.Must(template.New("page").Parse(pageText))

// writeError answers with the reason why nothing is to be seen, unless an answer has begun.
func writeError(w *answer, r *http.Request, t target, err error) {
	if w.status != 0 {
		panic(http.ErrAbortHandler) // it must not look whole
	}
	if errors.Is(err, errBounce) {
		showBounce(w, r, t)
		return
	}
	p := api.ProblemOf(r.Context(), err)
	if errors.Is(err, errHead) {
		p = headProblem(r)
	}
	if p.Code == sandpit.Unavailable || p.Code == sandpit.Internal {
		p.Status, p.Title = http.StatusBadGateway, http.StatusText(http.StatusBadGateway)
	}
	h := w.Header()
	clear(h)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept, User-Agent")
	if t.asE2B(r) {
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
		refuseAsE2B(w, t, p, err)
		return
	}
	if !t.wantsPage(r) {
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
		api.WriteProblem(w, p)
		return
	}
	for name, values := range api.ProblemHeaders(p) {
		if name != "Www-Authenticate" { // there is nothing that a browser could ask for
			h[name] = values
		}
	}
	title := headlineOf(p.Code)
	if t.rules.E2B {
		e2b := problemOf(p, t, err)
		p.Status, title = e2b.Code, e2b.title
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	w.WriteHeader(p.Status)
	_ = page.Execute(w, struct { // fails only if the client is gone
		wire.Problem
		PageTitle string
		Headline  string
	}{p, title, headlineOf(p.Code)})
}

// headlineOf says it in a few words.
func headlineOf(code sandpit.Code) string {
	switch code {
	case sandpit.Unauthenticated:
		return "This preview is private"
	case sandpit.Gone:
		return "This sandbox is gone"
	case sandpit.NotFound:
		return "Sandbox not found"
	case sandpit.Conflict:
		return "This sandbox does not run"
	case sandpit.Unavailable:
		return "Nothing answers at this port"
	default:
		return "This preview cannot be shown"
	}
}
