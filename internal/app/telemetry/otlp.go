package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// exporter sends spans to a collector by OTLP over HTTP, as JSON. The library's own
// exporter brings gRPC along, which makes the program 7 MB larger.
type exporter struct {
	o      config.Traces
	log    *slog.Logger
	client *http.Client
	failed atomic.Bool // the last batch was lost, and that was logged
}

func newExporter(o config.Traces, log *slog.Logger) *exporter {
	return &exporter{o: o, log: log, client: &http.Client{
		// A redirect must not send the headers, which may be secret, elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true},
	}}
}

// The retries of one batch, within the time-out.
const (
	exportTries = 3
	exportPause = 500 * time.Millisecond
)

// ExportSpans implements sdktrace.SpanExporter. It logs a failure once until it succeeds
// again, and returns none: the library would print it.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	body, err := json.Marshal(encodeSpans(spans))
	for try := 1; err == nil; try++ {
		var again bool
		again, err = e.sendBatch(ctx, body)
		if err == nil || !again || try == exportTries {
			break
		}
		select {
		case <-time.After(time.Duration(try) * exportPause):
			err = nil
		case <-ctx.Done():
		}
	}
	switch {
	case err != nil && !e.failed.Swap(true):
		e.log.WarnContext(ctx, "telemetry: spans not sent and lost", slog.Int("spans", len(spans)), slog.Any("error", err))
	case err == nil && e.failed.Swap(false):
		e.log.InfoContext(ctx, "telemetry: spans are sent again")
	}
	return nil
}

// sendBatch sends one batch, and reports whether it may be sent again.
func (e *exporter) sendBatch(ctx context.Context, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.o.Endpoint, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("send spans: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range e.o.Headers {
		req.Header.Set(name, value.Reveal())
	}
	res, err := e.client.Do(req)
	if err != nil {
		return true, fmt.Errorf("send spans: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
	switch res.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return again, fmt.Errorf("send spans: the collector answers %s", res.Status)
}

// Shutdown implements sdktrace.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// The messages of OTLP, as far as they are needed.
type (
	otlpRequest struct {
		ResourceSpans []otlpResource `json:"resourceSpans"`
	}
	otlpResource struct {
		Resource   otlpAttributes `json:"resource"`
		ScopeSpans []otlpScope    `json:"scopeSpans"`
	}
	otlpAttributes struct {
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpScope struct {
		Scope struct {
			Name string `json:"name"`
		} `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpSpan struct {
		TraceID    string          `json:"traceId"`
		SpanID     string          `json:"spanId"`
		ParentID   string          `json:"parentSpanId,omitempty"`
		TraceState string          `json:"traceState,omitempty"`
		Name       string          `json:"name"`
		Kind       int             `json:"kind"`
		Start      string          `json:"startTimeUnixNano"`
		End        string          `json:"endTimeUnixNano"`
		Attributes []otlpAttribute `json:"attributes,omitempty"`
		Status     otlpStatus      `json:"status"`
	}
	otlpAttribute struct {
		Key   string         `json:"key"`
		Value map[string]any `json:"value"`
	}
	otlpStatus struct {
		Code    int    `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	}
)

// encodeSpans puts spans, all of which are of one resource and one scope, together.
func encodeSpans(spans []sdktrace.ReadOnlySpan) otlpRequest {
	var scope otlpScope
	scope.Scope.Name = spans[0].InstrumentationScope().Name
	for _, s := range spans {
		scope.Spans = append(scope.Spans, encodeSpan(s))
	}
	return otlpRequest{ResourceSpans: []otlpResource{{
		Resource:   otlpAttributes{encodeAttributes(spans[0].Resource().Attributes())},
		ScopeSpans: []otlpScope{scope},
	}}}
}

func encodeSpan(s sdktrace.ReadOnlySpan) otlpSpan {
	out := otlpSpan{
		TraceID: s.SpanContext().TraceID().String(), SpanID: s.SpanContext().SpanID().String(),
		TraceState: s.SpanContext().TraceState().String(), Name: s.Name(), Kind: int(s.SpanKind()),
		Start: formatNanos(s.StartTime()), End: formatNanos(s.EndTime()), Attributes: encodeAttributes(s.Attributes()),
	}
	if s.Parent().IsValid() {
		out.ParentID = s.Parent().SpanID().String()
	}
	switch s.Status().Code {
	case codes.Ok:
		out.Status.Code = 1
	case codes.Error:
		out.Status = otlpStatus{Code: 2, Message: s.Status().Description}
	case codes.Unset:
	}
	return out
}

func formatNanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// encodeAttributes renders texts and whole numbers, which is all there are.
func encodeAttributes(list []attribute.KeyValue) []otlpAttribute {
	out := make([]otlpAttribute, len(list))
	for i, a := range list {
		value := map[string]any{"stringValue": a.Value.String()}
		if a.Value.Type() == attribute.INT64 {
			value = map[string]any{"intValue": strconv.FormatInt(a.Value.AsInt64(), 10)}
		}
		out[i] = otlpAttribute{Key: string(a.Key), Value: value}
	}
	return out
}
