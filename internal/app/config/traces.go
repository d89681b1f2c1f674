package config

import (
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Traces say where spans go: to a collector, by OTLP over HTTP, as JSON.
type Traces struct {
	// Endpoint is the whole URL. "": nowhere.
	Endpoint string
	// Headers go with each request; they may hold secrets.
	Headers map[string]Secret
	// Timeout is for one request. Default: 10 s.
	Timeout time.Duration
	// Service is the name of this server. Default: sandpit. Attributes say more.
	Service    string
	Attributes map[string]string
}

// tracesPath is where a collector takes spans, below its address.
const tracesPath = "/v1/traces"

// loadTraces reads the variables of OpenTelemetry. Tracing is a help only, and the
// variables are shared with other programs: what is wrong with them turns it off,
// and is told.
func (l *loader) loadTraces() {
	t := Traces{Timeout: 10 * time.Second, Service: "sandpit"}
	switch {
	case strings.EqualFold(l.env["OTEL_SDK_DISABLED"], "true"), l.env["OTEL_TRACES_EXPORTER"] == "none":
		return
	case l.env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] != "":
		t.Endpoint = l.env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
	case l.env["OTEL_EXPORTER_OTLP_ENDPOINT"] != "":
		t.Endpoint = strings.TrimRight(l.env["OTEL_EXPORTER_OTLP_ENDPOINT"], "/") + tracesPath
	default:
		return
	}
	u, err := url.Parse(t.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		l.addNotice("OTEL_EXPORTER_OTLP_ENDPOINT is not an address like http://localhost:4318; there are no traces")
		return
	}
	if protocol := l.firstVariable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol == "grpc" {
		l.addNotice("OTEL_EXPORTER_OTLP_PROTOCOL: gRPC is not spoken here, but OTLP over HTTP, as JSON; there are no traces")
		return
	}
	t.Headers = map[string]Secret{}
	for name, value := range parsePairs(l.firstVariable("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")) {
		t.Headers[name] = Secret(value)
	}
	t.Attributes = parsePairs(l.env["OTEL_RESOURCE_ATTRIBUTES"])
	if name := l.env["OTEL_SERVICE_NAME"]; name != "" {
		t.Service = name
	} else if name := t.Attributes["service.name"]; name != "" {
		t.Service = name
	}
	delete(t.Attributes, "service.name")
	if text := l.firstVariable("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"); text != "" {
		ms, err := strconv.Atoi(text)
		if err != nil || ms <= 0 || ms > int(time.Hour/time.Millisecond) {
			l.addNotice("OTEL_EXPORTER_OTLP_TIMEOUT: %s is not a number of milliseconds and is ignored", quoteText(text))
		} else {
			t.Timeout = time.Duration(ms) * time.Millisecond
		}
	}
	l.cfg.Telemetry.Traces = t
}

// firstVariable returns the value of the first variable that is set.
func (l *loader) firstVariable(names ...string) string {
	for _, name := range names {
		if value := l.env[name]; value != "" {
			return value
		}
	}
	return ""
}

// parsePairs reads name=value,name=value with the values escaped as in URLs. What is not
// of this form is left out.
func parsePairs(text string) map[string]string {
	list := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(item, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if plain, err := url.PathUnescape(value); ok && err == nil && name != "" && !hasControl(name+plain) {
			list[name] = plain
		}
	}
	return list
}
