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
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// problemError is a problem as huma takes it.
type problemError struct {
	wire.Problem
}

// Error implements error.
func (f *problemError) Error() string { return f.Detail }

// GetStatus implements huma.StatusError.
func (f *problemError) GetStatus() int { return f.Status }

// GetHeaders implements huma.HeadersError.
func (f *problemError) GetHeaders() http.Header { return api.ProblemHeaders(f.Problem) }

// ContentType implements huma.ContentTypeFilter.
func (f *problemError) ContentType(string) string { return wire.ContentTypeProblem }

// writeTimeout is how long an answer may take to be sent.
const writeTimeout = 30 * time.Second

// humaContext is a name for what has a method Context, too.
type humaContext = huma.Context

// bodyCost is how many bytes each byte of a body takes: as it is, as values of no type to
// be validated, and as those that it is meant to be.
const bodyCost = 8

// responseContext is the context of one request, with the last word on the status. The body is taken
// from the request's account of memory.
type responseContext struct {
	humaContext

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
func (c *responseContext) BodyReader() io.Reader {
	c.body = &limitedBody{Reader: memory.Metered(c.humaContext.BodyReader(), memory.AccountOf(c.Context()), bodyCost)}
	return c.body
}

// encodeJSON writes an answer, as huma.DefaultJSONFormat does, without keeping all of it.
func encodeJSON(w io.Writer, v any) error {
	if err := api.EncodeJSON(w, v); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// Unwrap lets the adapter find its own.
func (c *responseContext) Unwrap() huma.Context { return c.humaContext }

// SetStatus implements huma.Context. From here on the answer is sent.
func (c *responseContext) SetStatus(status int) {
	if c.status != 0 {
		status = c.status
	}
	_, w := humago.Unwrap(c)
	// The edge takes it away again before the next request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // what cannot have one needs none
	c.humaContext.SetStatus(status)
}

// statusCodes say what the statuses mean that huma itself answers with.
var statusCodes = map[int]sandpit.Code{
	http.StatusRequestTimeout:      sandpit.Timeout,
	http.StatusInternalServerError: sandpit.Internal,
}

const maxFaults = 50

// toProblem makes a problem of what huma says about a request, and leaves out the
// values that it quotes: they may be secrets.
func toProblem(ctx huma.Context, _ string, v any) (any, error) {
	model, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	code, known := statusCodes[model.Status]
	if !known {
		code = sandpit.Invalid
	}
	p := api.ProblemOf(ctx.Context(), &sandpit.Error{Code: code, Err: errors.New(model.Detail)})
	r, _ := ctx.(*responseContext) // else there is only the problem to be written
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
		p.Errors = append(p.Errors, wire.Fault{Message: truncate(e.Message), Location: truncate(e.Location)})
	}
	if r != nil {
		r.status = p.Status
	}
	return p, nil
}

func truncate(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
