package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// Tracer follows requests from their clients (the header traceparent of W3C) to the commands in
// sandboxes (TRACEPARENT in their environment), and sends spans to a collector, if there is one.
// All methods may be called concurrently.
type Tracer struct {
	tracer     trace.Tracer
	provider   *sdktrace.TracerProvider // nil: no spans are kept
	propagator propagation.TraceContext
	metrics    *Metrics
}

// NewTracer returns a Tracer. Requests are counted by metrics, and log hears when the
// collector cannot be reached; either may be nil. Close must be called.
func NewTracer(o config.Traces, version string, metrics *Metrics, log *slog.Logger) *Tracer {
	t := &Tracer{tracer: noop.NewTracerProvider().Tracer(""), metrics: metrics}
	if o.Endpoint == "" {
		return t
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	attributes := []attribute.KeyValue{attribute.String("service.name", o.Service), attribute.String("service.version", version)}
	for name, value := range o.Attributes {
		attributes = append(attributes, attribute.String(name, value))
	}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(newExporter(o, log)),
		sdktrace.WithResource(resource.NewSchemaless(attributes...)),
	)
	t.tracer = t.provider.Tracer("github.com/sandpit-dev/sandpit")
	return t
}

// Close sends what is left, within the context.
func (t *Tracer) Close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Handler returns next with each request followed, and its bytes counted.
func (t *Tracer) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := t.propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, methodOf(r.Method), trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		scope := sandpit.CommandScope{Env: t.traceEnv(ctx)}
		if t.metrics != nil {
			t.metrics.inFlight.Inc()
			defer t.metrics.inFlight.Dec()
			if r.Body != nil && r.Body != http.NoBody { // which later handlers look for
				r.Body = counted{ReadCloser: r.Body, metrics: t.metrics}
			}
		}
		if parent := scope.Env["TRACEPARENT"]; parent != "" {
			w.Header().Set("Traceparent", parent)
		}
		next.ServeHTTP(w, r.WithContext(sandpit.WithCommandScope(ctx, scope)))
	})
}

// traceEnv is what tells commands where they belong; nil: nowhere.
func (t *Tracer) traceEnv(ctx context.Context) map[string]string {
	carrier := propagation.MapCarrier{}
	t.propagator.Inject(ctx, carrier)
	if len(carrier) == 0 {
		return nil
	}
	env := make(map[string]string, len(carrier))
	for name, value := range carrier {
		env[strings.ToUpper(name)] = value
	}
	return env
}

// Answered records the response to the request with this context.
func (t *Tracer) Answered(r *http.Request, pattern string, status int) {
	span := trace.SpanFromContext(r.Context())
	if !span.IsRecording() {
		return
	}
	route := routeOf(pattern)
	span.SetName(methodOf(r.Method) + " " + route)
	span.SetAttributes(attribute.String("http.request.method", methodOf(r.Method)),
		attribute.String("http.route", route), attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
}

// Provider returns p with a span for each sandbox that it makes or attaches to.
func (t *Tracer) Provider(name string, p sandpit.Provider) sandpit.Provider {
	return traced{Provider: p, name: name, tracer: t.tracer}
}

type traced struct {
	sandpit.Provider

	name   string
	tracer trace.Tracer
}

// Unwrap shows sandpit.As what is inside.
func (p traced) Unwrap() any { return p.Provider }

func (p traced) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (i sandpit.Instance, err error) {
	ctx, span := p.startSpan(ctx, "create", attribute.String("sandpit.sandbox", string(id)), attribute.String("sandpit.image", imageName(spec.Image)))
	defer endSpan(span, &err)
	return p.Provider.Create(ctx, id, spec)
}

func (p traced) Attach(ctx context.Context, handle []byte) (i sandpit.Instance, err error) {
	ctx, span := p.startSpan(ctx, "attach")
	defer endSpan(span, &err)
	return p.Provider.Attach(ctx, handle)
}

func (p traced) startSpan(ctx context.Context, call string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	attributes = append(attributes, attribute.String("sandpit.provider", p.name))
	return p.tracer.Start(ctx, call+" sandbox", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
}

func endSpan(span trace.Span, err *error) {
	if *err != nil {
		span.SetStatus(codes.Error, codeOf(*err)) // the text may be anybody's
	}
	span.End()
}

// counted counts what is read of a request.
type counted struct {
	io.ReadCloser

	metrics *Metrics
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.metrics.received.Add(float64(n))
	return n, err
}
