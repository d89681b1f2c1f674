package native

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// failure is a problem as huma takes it.
type failure struct {
	wire.Problem
}

// Error implements error.
func (f *failure) Error() string { return f.Detail }

// GetStatus implements huma.StatusError.
func (f *failure) GetStatus() int { return f.Status }

// GetHeaders implements huma.HeadersError.
func (f *failure) GetHeaders() http.Header { return api.ProblemHeaders(f.Problem) }

// ContentType implements huma.ContentTypeFilter.
func (f *failure) ContentType(string) string { return wire.ContentTypeProblem }

// answerLimit is how long an answer may take to be sent.
const answerLimit = 30 * time.Second

// request is a name for what has a method Context, too.
type request = huma.Context

// bodyCost is how many bytes each byte of a body takes: as it is, as values of no type to
// be validated, and as those that it is meant to be.
const bodyCost = 8

// reply is the context of one request, with the last word on the status. The body is taken
// from the request's account of memory.
type reply struct {
	request

	status int // 0: as huma has it
	body   *limitedBody
}

// limitedBody is the body of a request that remembers why it cannot be read.
type limitedBody struct {
	io.Reader

	err error // nil, or Exhausted
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if sandpit.CodeOf(err) == sandpit.Exhausted {
		b.err = err
	}
	return n, err
}

// BodyReader implements huma.Context.
func (c *reply) BodyReader() io.Reader {
	c.body = &limitedBody{Reader: memory.Metered(c.request.BodyReader(), memory.AccountOf(c.Context()), bodyCost)}
	return c.body
}

// encode writes an answer, as huma.DefaultJSONFormat does, without keeping all of it.
func encode(w io.Writer, v any) error {
	if err := api.EncodeJSON(w, v); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// Unwrap lets the adapter find its own.
func (c *reply) Unwrap() huma.Context { return c.request }

// SetStatus implements huma.Context. From here on the answer is sent.
func (c *reply) SetStatus(status int) {
	if c.status != 0 {
		status = c.status
	}
	_, w := humago.Unwrap(c)
	// The edge takes it away again before the next request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerLimit)) // what cannot have one needs none
	c.request.SetStatus(status)
}

// codes say what the statuses mean that huma itself answers with.
var codes = map[int]sandpit.Code{
	http.StatusRequestTimeout:      sandpit.Timeout,
	http.StatusInternalServerError: sandpit.Internal,
}

const maxFaults = 50

// problemOf makes a problem of what huma says about a request, and leaves out the
// values that it quotes: they may be secrets.
func problemOf(ctx huma.Context, _ string, v any) (any, error) {
	model, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	code, known := codes[model.Status]
	if !known {
		code = sandpit.Invalid
	}
	p := api.ProblemOf(ctx.Context(), &sandpit.Error{Code: code, Err: errors.New(model.Detail)})
	r, _ := ctx.(*reply) // else there is only the problem to be written
	if r != nil && r.body != nil && r.body.err != nil {
		p, model = api.ProblemOf(ctx.Context(), r.body.err), &huma.ErrorModel{}
		for name, values := range api.ProblemHeaders(p) {
			ctx.SetHeader(name, values[0])
		}
	}
	switch model.Status {
	case http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusRequestTimeout:
		p.Status, p.Title = model.Status, http.StatusText(model.Status)
	}
	for i, e := range model.Errors {
		if i == maxFaults {
			break
		}
		p.Errors = append(p.Errors, wire.Fault{Message: clip(e.Message), Location: clip(e.Location)})
	}
	if r != nil {
		r.status = p.Status
	}
	return p, nil
}

func clip(s string) string {
	const maxLength = 200
	return textlen.Shorten(s, maxLength)
}
