package native

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// registrar adds operations to the API and its description.
type registrar struct {
	api     huma.API
	maxBody int64 // bytes of a request
	log     *slog.Logger
	streams streams
}

// newOperation begins the description of an operation.
func newOperation(method, path, id, summary string) huma.Operation {
	tag, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, wire.Prefix), "/"), "/")
	return huma.Operation{Method: method, Path: path, OperationID: id, Summary: summary, Tags: []string{tag}}
}

// addOperation registers an operation. An error of f becomes a problem.
func addOperation[I, O any](r *registrar, op huma.Operation, f func(context.Context, *I) (*O, error)) {
	op.MaxBodyBytes, op.BodyReadTimeout = r.maxBody, bodyTimeout
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	r.describeFailures(&op)
	huma.Register(r.api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, in)
		if err == nil {
			err = api.ReserveResponse(ctx, out)
		}
		if err != nil {
			return nil, &problemError{Problem: api.ProblemOf(ctx, err)}
		}
		return out, nil
	})
}

// describeFailures adds the response that every operation may give.
func (r *registrar) describeFailures(op *huma.Operation) {
	op.Responses["default"] = &huma.Response{
		Description: "A failure.",
		Content: map[string]*huma.MediaType{wire.ContentTypeProblem: {
			Schema: r.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[wire.Problem](), true, "Problem"),
		}},
	}
}

// addStream registers an operation that responds with events. The function that begin
// returns sends them; its context is that of the request.
func addStream[I any](r *registrar, op huma.Operation, begin func(context.Context, *I) (func(*http.Request, *api.Stream), error)) {
	op.MaxBodyBytes, op.BodyReadTimeout = r.maxBody, bodyTimeout
	op.Responses = map[string]*huma.Response{"200": {
		Description: "Server-sent events.",
		Content:     map[string]*huma.MediaType{api.ContentTypeStream: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
	r.describeFailures(&op)
	huma.Register(r.api, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		p, err := api.PrincipalOf(ctx)
		if err == nil {
			err = r.streams.addStream(p.Owner)
		}
		if err != nil {
			return nil, &problemError{Problem: api.ProblemOf(ctx, err)}
		}
		send, err := begin(ctx, in)
		if err != nil {
			r.streams.removeStream(p.Owner)
			return nil, &problemError{Problem: api.ProblemOf(ctx, err)}
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			defer r.streams.removeStream(p.Owner)
			req, w := humago.Unwrap(hc)
			st, err := api.NewStream(w)
			if err != nil {
				r.log.DebugContext(req.Context(), "api: cannot begin an event stream", slog.Any("error", err))
				return
			}
			send(req, st)
		}}, nil
	})
}

// bodyTimeout is how long the body of a request may take to arrive.
const bodyTimeout = 30 * time.Second

// maxStreams is how many streams each owner may have open at a time: each of them reads
// the store.
const maxStreams = 100

// streams counts the open streams of each owner.
type streams struct {
	mu     sync.Mutex
	owners map[string]int
}

// addStream counts one more stream of an owner. The caller calls leave when it ends, unless there
// was an error. Exhausted: the owner has too many.
func (s *streams) addStream(owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[owner] >= maxStreams {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "stream limit reached: owner %.100q has %d of %d streams", owner, s.owners[owner], maxStreams),
			"end streams that are not needed")
	}
	if s.owners == nil {
		s.owners = make(map[string]int)
	}
	s.owners[owner]++
	return nil
}

// removeStream counts one stream less.
func (s *streams) removeStream(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[owner]--; s.owners[owner] == 0 {
		delete(s.owners, owner)
	}
}

// maxSeconds bounds durations, in seconds. Requests have another way to say "never".
const maxSeconds = 100 * 365 * 24 * 3600

// toDuration converts a number of seconds. Invalid: it is out of bounds.
func toDuration(name string, n float64) (time.Duration, error) {
	if n > maxSeconds || n < -maxSeconds {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s: %g seconds are too many", name, n)
	}
	return time.Duration(n * float64(time.Second)), nil
}
