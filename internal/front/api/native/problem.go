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

// problemError is a problem as an error for huma.
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

// writeTimeout is how long sending a response may take.
const writeTimeout = 30 * time.Second

// humaContext renames huma.Context, which as an embedded field would hide its method Context.
type humaContext = huma.Context

// bodyCost is how many bytes of memory each byte of a body takes: as text, as untyped values
// for validation, and as typed values.
const bodyCost = 8

// responseContext is the huma.Context of one request. It can override the status, and counts
// the memory of the body in the request's account.
type responseContext struct {
	humaContext

	status int // 0: huma's
	body   *limitedBody
}

// limitedBody is the body of a request. It records why reading it failed.
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
	c.body = &limitedBody{Reader: memory.MeteredJSON(c.humaContext.BodyReader(), memory.AccountOf(c.Context()), bodyCost)}
	return c.body
}

// encodeJSON writes a response like huma.DefaultJSONFormat, without holding all of its text.
func encodeJSON(w io.Writer, v any) error {
	if err := api.EncodeJSON(w, v); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// Unwrap returns the context of the adapter.
func (c *responseContext) Unwrap() huma.Context { return c.humaContext }

// SetStatus implements huma.Context. It sets the deadline of sending the response.
func (c *responseContext) SetStatus(status int) {
	if c.status != 0 {
		status = c.status
	}
	_, w := humago.Unwrap(c)
	// The edge clears it before the next request. Connections without deadlines need none.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	c.humaContext.SetStatus(status)
}

// statusCodes are the codes of statuses that huma itself returns.
var statusCodes = map[int]sandpit.Code{
	http.StatusRequestTimeout:      sandpit.Timeout,
	http.StatusInternalServerError: sandpit.Internal,
}

const maxFaults = 50

// toProblem converts an error of huma to a problem without the quoted values, which may be
// secrets.
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
	r, _ := ctx.(*responseContext) // nil: only the problem is written
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
	const maxLength = 200
	return textlen.Shorten(s, maxLength)
}
