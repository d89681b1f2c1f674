package telemetry

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

func formatInt(n int) string { return strconv.Itoa(n) }

// Metrics counts what a server does. All methods may be called concurrently, and
// return at once. It is a manager.Observer.
type Metrics struct {
	registry *prometheus.Registry

	requests     *prometheus.CounterVec
	requestTime  *prometheus.HistogramVec
	inFlight     prometheus.Gauge
	received     prometheus.Counter
	sent         prometheus.Counter
	operations   *prometheus.CounterVec
	operateTime  *prometheus.HistogramVec
	commands     *prometheus.CounterVec
	commandTime  prometheus.Histogram
	poolRequests *prometheus.CounterVec
	handled      *prometheus.CounterVec
	calls        *prometheus.CounterVec
	callTime     *prometheus.HistogramVec
	passedOn     *prometheus.CounterVec

	words words
}

var _ manager.Observer = (*Metrics)(nil)

const namespace = "sandpit"

// Buckets, in seconds.
var (
	quick = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120}
	slow  = []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800}
)

// NewMetrics returns figures of a server of this version, all of them zero.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), words: words{known: make(map[string]bool)}}
	m.requests = m.newCounter("http_requests_total", "Requests that were answered.", "method", "route", "code")
	m.requestTime = m.newHistogram("http_request_duration_seconds", "How long requests took, streams included.", quick, "method", "route")
	m.operations = m.newCounter("operations_total", "Operations on sandboxes, including refused ones.", "action", "code")
	m.operateTime = m.newHistogram("operation_duration_seconds", "How long it took to do something to a sandbox.", quick, "action")
	m.commands = m.newCounter("commands_total", "Commands that ended, by how.", "result")
	m.poolRequests = m.newCounter("pool_requests_total", "Requests for a sandbox of a pool's kind.", "provider", "image", "result")
	m.handled = m.newCounter("queue_handled_total", "Messages of the queue that were handled. What failed is tried again, or given up.", "kind", "code")
	m.calls = m.newCounter("provider_calls_total", "Calls of providers.", "provider", "call", "code")
	m.callTime = m.newHistogram("provider_call_duration_seconds", "How long calls of providers took.", quick, "provider", "call")
	m.passedOn = m.newCounter("provider_passed_on_total", "Requests for sandboxes that a provider did not fulfill, of those that another one could.", "provider", "code")
	m.commandTime = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "command_duration_seconds", Help: "How long commands took.", Buckets: slow,
	})
	m.inFlight = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "http_requests_in_flight", Help: "Requests that are being answered.",
	})
	m.received = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "http_received_bytes_total", Help: "Bytes of requests, heads left out.",
	})
	m.sent = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "http_sent_bytes_total", Help: "Bytes of answers, heads left out.",
	})
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the version is a label.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	m.registry.MustRegister(m.commandTime, m.inFlight, m.received, m.sent, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *Metrics) newCounter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) newHistogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(h)
	return h
}

// Gatherer returns the registry, for tests and other output formats.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// maxScrapes is how many may ask at a time.
const maxScrapes = 4

// Handler serves the metrics. It does not check a key.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		Registry: nil, MaxRequestsInFlight: maxScrapes, Timeout: sourceLimit + 5*time.Second, EnableOpenMetrics: true,
	})
}

// Request counts one request that has ended: the pattern of its route, or "",
// and its duration.
func (m *Metrics) Request(method, pattern string, status int, took time.Duration, sent int64) {
	method, route := methodOf(method), routeOf(pattern)
	m.requests.WithLabelValues(method, route, formatInt(status)).Inc()
	m.requestTime.WithLabelValues(method, route).Observe(took.Seconds())
	m.sent.Add(float64(max(sent, 0)))
}

// methodOf keeps clients from making up methods.
func methodOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect:
		return method
	}
	return "other"
}

// Done implements manager.Observer.
func (m *Metrics) Done(r manager.Report) {
	action := m.words.boundLabel(r.Action)
	m.operations.WithLabelValues(action, codeOf(r.Err)).Inc()
	if r.Took > 0 {
		m.operateTime.WithLabelValues(action).Observe(r.Took.Seconds())
	}
}

// Asked implements manager.Observer.
func (m *Metrics) Asked(provider string, image sandpit.Image, found bool) {
	result := "miss"
	if found {
		result = "hit"
	}
	m.poolRequests.WithLabelValues(provider, imageName(image), result).Inc()
}

// PassedOn implements manager.Observer.
func (m *Metrics) PassedOn(provider string, err error) {
	m.passedOn.WithLabelValues(provider, codeOf(err)).Inc()
}

// Handled implements manager.Observer.
func (m *Metrics) Handled(kind queue.Kind, err error) {
	m.handled.WithLabelValues(m.words.boundLabel(string(kind)), codeOf(err)).Inc()
}

// Ended implements manager.Observer.
func (m *Metrics) Ended(took time.Duration, status sandpit.ExitStatus, err error) {
	m.commands.WithLabelValues(resultOf(status, err)).Inc()
	if err == nil {
		m.commandTime.Observe(took.Seconds())
	}
}

func resultOf(status sandpit.ExitStatus, err error) string {
	switch {
	case err != nil:
		return codeOf(err)
	case status.OutOfMemory:
		return "out_of_memory"
	case status.Signaled:
		return "killed"
	case status.Code != 0:
		return "failed"
	}
	return "ok"
}

func imageName(image sandpit.Image) string {
	if image == "" {
		image = sandpit.HostImage
	}
	return string(image)
}

func codeOf(err error) string {
	if err == nil {
		return "ok"
	}
	return string(sandpit.CodeOf(err))
}

// words are values of a label. There are few; were there ever many, the rest would
// be one.
type words struct {
	mu    sync.Mutex
	known map[string]bool
}

const maxWords = 100

func (w *words) boundLabel(word string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known[word] {
		if len(w.known) >= maxWords || len(word) > 64 {
			return "other"
		}
		w.known[word] = true
	}
	return word
}
