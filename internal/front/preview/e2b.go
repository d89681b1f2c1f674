package preview

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Rules say how the ports of a sandbox are reached. The zero value is that of a sandbox
// that was created by neither E2B's API nor Daytona's.
type Rules struct {
	// E2B says that the sandbox was created by E2B's API. Its clients expect public ports,
	// a public health check of the guest, and errors in E2B's form.
	E2B bool
	// Private requires TrafficToken for the ports.
	Private bool
	// Wakes has a request resume a paused sandbox.
	Wakes bool
	// Host is what programs see as the host of requests, with "${PORT}" for the port.
	// Default: as the viewer has written it.
	Host string
	// Public ports need no token, except those that Daytona's API reserves.
	Public bool
	// HTTPS are the ports at which programs speak TLS. Their certificates are not checked,
	// because the connection does not leave the machine.
	HTTPS []int
}

// hostFor is what a program at a port sees as the host of a request.
func (r Rules) hostFor(written string, port int) string {
	if r.Host == "" || port == guestPort {
		return written
	}
	return strings.ReplaceAll(r.Host, "${PORT}", strconv.Itoa(port))
}

// rulesOf returns the rules of a sandbox, which need not exist.
func (g *Gateway) rulesOf(id sandpit.ID) Rules {
	if g.o.Rules == nil {
		return Rules{}
	}
	s, err := g.o.Manager.Get(id)
	if err != nil {
		return Rules{}
	}
	return g.o.Rules(s)
}

// AccessTokens returns the token that opens the guest of a sandbox and signs URLs of files
// and, if traffic is wanted, the one that opens all other ports; else "". They are those of
// the caller's API key, and end with it.
//
// Unauthenticated: the caller is not known. NotFound: the sandbox.
func (g *Gateway) AccessTokens(ctx context.Context, id sandpit.ID, wantTraffic bool) (guest, traffic string, err error) {
	h, err := holderOf(ctx)
	if err != nil {
		return "", "", err
	}
	return g.o.Tokens.Access(ctx, id, h, wantTraffic)
}

// holderOf returns the holder of a token that is requested now.
func holderOf(ctx context.Context) (token.Holder, error) {
	p, err := api.PrincipalOf(ctx)
	return token.Holder{Owner: p.Owner, Key: p.KeyID}, err
}

// enterAsE2B admits or refuses a request by E2B's rules. It returns no decision for other
// requests.
func (a *authorizer) enterAsE2B(r *http.Request, t target) (known bool, in *http.Request, p pass, err error) {
	switch {
	case t.mode == byPath:
		return false, r, freePass(), nil
	case t.port != guestPort:
		return t.rules.E2B && !t.rules.Private, r, freePass(), nil
	case isSigned(r):
		in, p, err = a.enterBySignature(r, t.id)
		return true, in, p, err
	}
	if secret, shown := shownToken(r.Header, guestPort); shown {
		in, p, err = a.admitToken(r, secret, token.Guest(t.id))
		return sandpit.CodeOf(err) != sandpit.Unauthenticated, in, p, err
	}
	return t.rules.E2B && isHealth(r), r, freePass(), nil
}

// isHealth reports whether a request is for the health check of the guest.
func isHealth(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Path == "/health" }

// isSigned reports whether a request is for a file, and its URL says that it is allowed.
func isSigned(r *http.Request) bool {
	return r.URL.Path == "/files" && (r.Method == http.MethodGet || r.Method == http.MethodPost) &&
		strings.Contains(r.URL.RawQuery, "signature=") && r.URL.Query().Get("signature") != ""
}

// signatureOf returns the signature of a URL that the holder of a token signed.
func signatureOf(method string, query url.Values, token string) string {
	operation := "read"
	if method == http.MethodPost {
		operation = "write"
	}
	signed := []string{query.Get("path"), operation, query.Get("username"), token}
	if expiration := query.Get("signature_expiration"); expiration != "" {
		signed = append(signed, expiration)
	}
	sum := sha256.Sum256([]byte(strings.Join(signed, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// enterBySignature lets a request in whose URL was signed with a token of the guest, and has
// not expired. Unauthenticated.
func (a *authorizer) enterBySignature(r *http.Request, id sandpit.ID) (*http.Request, pass, error) {
	in, err := a.tokens.AdmitSigned(r.Context(), id, signedWith(r))
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		err = errSignature("invalid signature")
	}
	if err != nil {
		return r, freePass(), err
	}
	if err := checkExpiration(r.URL.Query(), a.clock.Now()); err != nil {
		in.Release()
		return r, freePass(), err
	}
	return r.WithContext(in.Context()), pass{release: in.Release}, nil
}

// signedWith returns what reports whether a request was signed with a token.
func signedWith(r *http.Request) func(secret string) bool {
	query := r.URL.Query()
	given := []byte(query.Get("signature"))
	return func(secret string) bool {
		return subtle.ConstantTimeCompare(given, []byte(signatureOf(r.Method, query, secret))) == 1
	}
}

// checkExpiration refuses a signed URL that has expired. Unauthenticated.
func checkExpiration(query url.Values, now time.Time) error {
	expiration := query.Get("signature_expiration")
	if expiration == "" {
		return nil
	}
	seconds, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil {
		return errSignature("invalid signature expiration")
	}
	if now.Unix() > seconds {
		return errSignature("signature is already expired")
	}
	return nil
}

// errSignature has a fixed text, because clients compare it.
func errSignature(text string) error {
	return &signatureError{sandpit.Errorf(sandpit.Unauthenticated, "%s", text)}
}

type signatureError struct{ error }

// Unwrap returns the error with its code.
func (e *signatureError) Unwrap() error { return e.error }

// bareTarget returns the sandbox whose guest a request is for that names none, as
// clients send them that reach all sandboxes by one URL: those of earlier versions show
// the token only, and in a signed URL there is nothing but the signature. It is false
// for what is no such request. One that is wrong has a target without a sandbox, and is
// refused like a wrong one for a sandbox.
func (g *Gateway) bareTarget(r *http.Request) (target, bool) {
	secret, signed := r.Header.Get(headerGuest), isSigned(r)
	switch {
	case g.o.Rules == nil:
		return target{}, false
	case signed:
		return target{id: g.o.Tokens.GuestOfSigned(signedWith(r)), port: guestPort, mode: byHeader}, true
	case strings.HasPrefix(secret, token.Prefix):
		return target{id: g.o.Tokens.GuestOf(r.Context(), secret), port: guestPort, mode: byHeader}, true
	}
	return target{}, false
}

// holdSandbox uses a sandbox, and resumes it if its rules say so.
func (g *Gateway) holdSandbox(r *http.Request, t target) (*manager.Handle, error) {
	h, err := g.o.Manager.Use(r.Context(), t.id)
	asleep := sandpit.CodeOf(err) == sandpit.Conflict
	if !asleep || !t.rules.Wakes || g.o.Wake == nil || t.port == guestPort && isHealth(r) {
		return h, err
	}
	if err := g.o.Wake(r.Context(), t.id); err != nil {
		return nil, err
	}
	return g.o.Manager.Use(r.Context(), t.id)
}

// asE2B reports whether errors are to look as E2B's do.
func (t target) asE2B(r *http.Request) bool {
	if t.mode == byPath {
		return false
	}
	if t.port == guestPort && (t.mode == byHeader || r.Header.Get(headerGuest) != "" || isSigned(r)) {
		return true
	}
	return t.rules.E2B && (t.port == guestPort || !t.wantsPage(r))
}

// browserPattern is how E2B recognizes browsers, independent of their Accept header.
var browserPattern = pattern.New(`(?i)mozilla|chrome|safari|firefox|edge|opera|msie`)

// wantsPage reports whether errors are to be pages for people.
func (t target) wantsPage(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html") || t.rules.E2B && browserPattern().MatchString(r.UserAgent())
}

// unauthorized is the error of E2B's guest without a valid token.
const unauthorized = "unauthorized access, please provide a valid access token or method signing if supported"

// problem is an error in E2B's form, with its texts where its clients compare them.
type problem struct {
	Sandbox sandpit.ID `json:"sandboxId,omitempty"`
	Code    int        `json:"code"` // the status
	Message string     `json:"message"`
	Port    int        `json:"port,omitempty"`
	// Reason is why a sandbox does not exist, which E2B does not report.
	Reason string `json:"reason,omitempty"`

	title string // of a page
}

// problemOf returns err, which p describes, in E2B's form.
func problemOf(p wire.Problem, t target, err error) problem {
	out := problem{Code: http.StatusBadGateway, Message: p.Detail, Sandbox: t.id, title: headlineOf(p.Code)}
	switch code := p.Code; {
	case code == sandpit.Unauthenticated && t.port == guestPort:
		out.Code, out.Sandbox = http.StatusUnauthorized, ""
		if _, isSigned := err.(*signatureError); !isSigned { //nolint:errorlint // made here, and never wrapped
			out.Message = unauthorized
		}
	case code == sandpit.Unauthenticated:
		out.Code, out.Message = http.StatusForbidden, "Missing or invalid traffic access token"
	case code == sandpit.Gone, code == sandpit.Conflict:
		const missing = "The sandbox was not found"
		out.Message, out.Reason, out.title = missing, p.Detail, "Sandbox Not Found"
		if t.port == guestPort {
			out.Message = missing + ": " + p.Detail // all that SDKs show of it
		}
	case code == sandpit.Unavailable && t.port != guestPort:
		out.Message, out.Port, out.title = "The sandbox is running but port is not open", t.port, "Closed Port Error"
	case code == sandpit.Unavailable && p.Hint != "":
		out.Message += ": " + p.Hint // SDKs show nothing else
	case code != sandpit.Unavailable && code != sandpit.Internal && code != sandpit.Timeout && code != sandpit.Canceled:
		out.Code = p.Status
	}
	return out
}

// refuseAsE2B answers with the reason why there is nothing. The answer has not begun.
func refuseAsE2B(w http.ResponseWriter, t target, p wire.Problem, err error) {
	body := problemOf(p, t, err)
	text, err := json.Marshal(body)
	if err != nil {
		text = nil // the status says enough
	}
	for name, values := range api.ProblemHeaders(p) {
		if name != "Www-Authenticate" {
			w.Header()[name] = values
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(body.Code)
	_, _ = w.Write(text) // fails only if the client is gone
}

// goneFor returns err as clients of a port see it: what no longer exists is gone.
func goneFor(t target, err error) error {
	if sandpit.CodeOf(err) == sandpit.NotFound && (t.port == guestPort || t.rules.E2B) {
		return sandpit.Errorf(sandpit.Gone, "nothing is known of sandbox %s any more", t.id)
	}
	return err
}
