package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lmittmann/tint"
	"go.opentelemetry.io/otel/trace"
)

// LogOptions configure a log.
type LogOptions struct {
	// Level is the lowest level that is logged. Default: info.
	Level slog.Level
	// Console writes lines for people; otherwise each line is a JSON object.
	Console bool
	// Color uses the colors of terminals.
	Color bool
	// RequestID returns the ID of the request that a context belongs to, or "".
	// Default: none.
	RequestID func(context.Context) string
}

// NewLog returns a log that writes to w, which must take concurrent calls. Times are
// RFC 3339 with milliseconds, in UTC. An entry of a request has its
// request_id, and its trace_id if it has one. Attributes whose names mark secrets are
// hidden, as are passwords in URLs and in headers.
func NewLog(w io.Writer, o LogOptions) *slog.Logger {
	if o.RequestID == nil {
		o.RequestID = func(context.Context) string { return "" }
	}
	var h slog.Handler
	if o.Console {
		h = tint.NewTextHandler(w, &tint.Options{Level: o.Level, AddSource: true, TimeFormat: isoTime, NoColor: !o.Color, ReplaceAttr: replaceConsole})
	} else {
		h = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: o.Level, AddSource: true, ReplaceAttr: replaceJSON})
	}
	return slog.New(marked{Handler: h, requestID: o.RequestID})
}

const isoTime = "2006-01-02T15:04:05.000Z07:00"

// marked adds to each record which request it belongs to.
type marked struct {
	slog.Handler

	requestID func(context.Context) string
}

func (m marked) Handle(ctx context.Context, r slog.Record) error {
	if ctx != nil {
		if id := m.requestID(ctx); id != "" && !hasAttr(r, "request_id") {
			r.AddAttrs(slog.String("request_id", id))
		}
		if span := trace.SpanContextFromContext(ctx); span.IsValid() {
			r.AddAttrs(slog.String("trace_id", span.TraceID().String()))
		}
	}
	return m.Handler.Handle(ctx, r)
}

func (m marked) WithAttrs(attrs []slog.Attr) slog.Handler {
	return marked{Handler: m.Handler.WithAttrs(attrs), requestID: m.requestID}
}

func (m marked) WithGroup(name string) slog.Handler {
	return marked{Handler: m.Handler.WithGroup(name), requestID: m.requestID}
}

func hasAttr(r slog.Record, key string) (found bool) {
	r.Attrs(func(a slog.Attr) bool {
		found = a.Key == key
		return !found
	})
	return found
}

// replaceConsole shortens call sites, and hides secrets.
func replaceConsole(groups []string, a slog.Attr) slog.Attr {
	if source, ok := a.Value.Any().(*slog.Source); ok && len(groups) == 0 {
		return shortSource(source)
	}
	return redactAttr(groups, a)
}

// shortSource returns a call site without the path of the machine that the program was built on.
func shortSource(source *slog.Source) slog.Attr {
	if source == nil || source.File == "" {
		return slog.Attr{}
	}
	dir, name := cutLast(source.File)
	_, dir = cutLast(dir)
	return slog.String(slog.SourceKey, dir+"/"+name+":"+formatInt(source.Line))
}

// replaceJSON formats times, and shortens call sites.
func replaceJSON(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 {
		switch v := a.Value.Any().(type) {
		case time.Time:
			if a.Key == slog.TimeKey {
				return slog.String(slog.TimeKey, v.UTC().Format(isoTime))
			}
		case *slog.Source:
			return shortSource(v)
		}
	}
	return redactAttr(groups, a)
}

func cutLast(path string) (dir, name string) {
	at := strings.LastIndexByte(path, '/')
	return path[:max(at, 0)], path[at+1:]
}

const hidden = "(hidden)"

// redactAttr hides secrets by the name of the attribute or of one of its groups.
func redactAttr(groups []string, a slog.Attr) slog.Attr {
	if slices.ContainsFunc(append(slices.Clone(groups), a.Key), isSecret) {
		if a.Value.Kind() != slog.KindGroup {
			return slog.String(a.Key, hidden)
		}
		return a // its members are handled one by one
	}
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	switch v := a.Value.Any().(type) {
	case http.Header:
		return slog.Any(a.Key, redactHeader(v))
	case *url.URL:
		if v != nil {
			return slog.String(a.Key, v.Redacted())
		}
	case map[string]string:
		return slog.Any(a.Key, redactMap(v))
	}
	return a
}

func redactHeader(h http.Header) http.Header {
	h = h.Clone()
	for name := range h {
		if isSecret(name) {
			h[name] = []string{hidden}
		}
	}
	return h
}

func redactMap(m map[string]string) map[string]string {
	kept := make(map[string]string, len(m))
	for name, value := range m {
		if isSecret(name) {
			value = hidden
		}
		kept[name] = value
	}
	return kept
}

// isSecret reports whether something of this name is not to be shown.
func isSecret(name string) bool {
	name = strings.NewReplacer("-", "", "_", "", ".", "", " ", "").Replace(strings.ToLower(name))
	if name == "keyid" || strings.HasSuffix(name, "tokens") { // names of keys, counts of tokens
		return false
	}
	return slices.ContainsFunc([]string{
		"password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "privatekey", "signingkey",
		"authorization", "cookie", "credential", "bearer", "redisurl", "dsn",
	}, func(word string) bool { return strings.Contains(name, word) })
}
