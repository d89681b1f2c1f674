package script

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// maxBody bounds the body of a request, as Anthropic does.
const maxBody = 32 << 20

// Server speaks the protocols of vendors for a model that follows a script: OpenAI's chat
// completions and responses, also at Azure's addresses, and Anthropic's messages. It is as strict
// as the vendors are: it refuses unknown fields, conversations that are out of order, results
// without calls and broken images, with the vendors' errors.
//
// It is an http.Handler for POST /v1/chat/completions, /v1/responses, /v1/messages and
// /openai/deployments/NAME/chat/completions.
type Server struct {
	model *Model
	o     ServerOptions
	mux   *http.ServeMux
	count atomic.Int64
}

// ServerOptions configure a Server. The zero value of a field means its default.
type ServerOptions struct {
	// Key is the API key that requests must have. Default: any key will do, but there must be one.
	Key string
}

// NewServer returns a server for a model. Several clients share its turns.
func NewServer(m *Model, o ServerOptions) *Server {
	s := &Server{model: m, o: o, mux: http.NewServeMux()}
	for path, p := range map[string]protocol{
		"/v1/chat/completions": chatProtocol{},
		"/v1/responses":        responsesProtocol{},
		"/v1/messages":         messagesProtocol{},
		"/openai/deployments/{name}/chat/completions": chatProtocol{openAI{azure: true}},
	} {
		s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, p) })
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		chatProtocol{}.writeRefusal(w, &refusal{
			status: http.StatusNotFound, kind: "invalid_request_error", message: fmt.Sprintf("Invalid URL (%s %s)", r.Method, r.URL.Path),
		}, "")
	})
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// protocol is one API of a vendor.
type protocol interface {
	dialect
	// authorize returns the key of a request, and complains about its headers.
	authorize(r *http.Request) (key string, err *refusal)
	wrongKey(key string) *refusal
	// parse reads a request.
	parse(c *checker, body field) call
	unknownModel(name string) *refusal
	// document returns the response in one piece.
	document(c call, a answer) any
	// events returns the response as a stream: until the end of the text, and what follows.
	events(c call, a answer) (open, rest []event)
	// failure returns the response to a turn that fails, and failed the event for it.
	failure(f *Failure) *refusal
	failed(r *refusal) event
	writeRefusal(w http.ResponseWriter, r *refusal, id string)
	// headerOfID is the header that has the ID of the request.
	headerOfID() string
}

// call is one request.
type call struct {
	request model.Request
	model   string
	// id makes names in the response unique.
	id     string
	stream bool
	// usage asks for the usage in the stream, and reasoning for its encrypted form.
	usage, reasoning bool
}

// event is one event of a stream. A text is sent as it is, everything else as JSON.
type event struct {
	name string
	data any
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, p protocol) {
	id := fmt.Sprintf("%06d", s.count.Add(1))
	w.Header().Set(p.headerOfID(), "req_"+id)
	c, refused := s.read(w, r, p)
	if refused != nil {
		p.writeRefusal(w, refused, id)
		return
	}
	c.id = id
	a, err := s.model.take(c.request)
	if err != nil {
		p.writeRefusal(w, &refusal{status: http.StatusBadRequest, kind: "invalid_request_error", message: err.Error()}, id)
		return
	}
	if sleep(r.Context(), time.Duration(a.turn.Delay)) != nil {
		return // the client is gone
	}
	if a.turn.Error != nil {
		s.fail(w, r, p, c, a)
		return
	}
	if c.stream {
		open, rest := p.events(c, a)
		writeEvents(w, append(open, rest...))
		return
	}
	writeJSON(w, http.StatusOK, p.document(c, a))
}

// read returns a request, or why it is refused.
func (s *Server) read(w http.ResponseWriter, r *http.Request, p protocol) (call, *refusal) {
	if r.Method != http.MethodPost {
		return call{}, &refusal{status: http.StatusMethodNotAllowed, kind: "invalid_request_error", message: "Method Not Allowed"}
	}
	key, refused := p.authorize(r)
	if refused != nil {
		return call{}, refused
	}
	if s.o.Key != "" && key != s.o.Key {
		return call{}, p.wrongKey(key)
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return call{}, &refusal{status: http.StatusRequestEntityTooLarge, kind: "request_too_large", message: "Request exceeds the maximum size"}
	}
	if !json.Valid(text) {
		return call{}, p.invalid("", "We could not parse the JSON body of your request.")
	}
	checks := &checker{d: p, version: r.Header.Get("Anthropic-Version")}
	c := p.parse(checks, field{text, ""})
	if checks.err != nil {
		return call{}, checks.err
	}
	if name := r.PathValue("name"); name != "" {
		c.model = name
	}
	if c.model != s.model.s.Model {
		return call{}, p.unknownModel(c.model)
	}
	return c, nil
}

// fail responds to a turn that has an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, p protocol, c call, a answer) {
	f := a.turn.Error
	open := []event{}
	if c.stream && a.text != "" {
		open, _ = p.events(c, a)
	}
	switch {
	case f.Kind == Hang:
		if len(open) > 0 {
			writeEvents(w, open)
		}
		<-r.Context().Done()
	case f.Kind == Cut:
		if len(open) > 0 {
			writeEvents(w, open)
		}
		panic(http.ErrAbortHandler)
	case f.Kind == Nonsense:
		writeEvents(w, append(open, event{"", `{"choices": [nonsense`}))
	case len(open) > 0:
		writeEvents(w, append(open, p.failed(p.failure(f))))
	default:
		p.writeRefusal(w, p.failure(f), c.id)
	}
}

// writeEvents sends events, each at once.
func writeEvents(w http.ResponseWriter, events []event) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	flusher := http.NewResponseController(w)
	for _, e := range events {
		text, ok := e.data.(string)
		if !ok {
			text = strings.TrimSuffix(string(encode(e.data)), "\n")
		}
		if e.name != "" {
			text = "event: " + e.name + "\ndata: " + text
		} else {
			text = "data: " + text
		}
		if _, err := io.WriteString(w, text+"\n\n"); err != nil || flusher.Flush() != nil {
			return // the client is gone
		}
	}
}

func writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encode(document)) // a client that is gone needs no answer
}

// encode returns a document of this package, which can always be encoded, as JSON.
func encode(document any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		panic(fmt.Sprintf("encode a response: %v", err))
	}
	return b.Bytes()
}

// retryHeader returns the value of Retry-After for a failure.
func (f *Failure) retryHeader() string {
	if f.RetryAfter <= 0 {
		return ""
	}
	return strconv.FormatFloat(time.Duration(f.RetryAfter).Seconds(), 'f', -1, 64)
}

func setRetryAfter(w http.ResponseWriter, r *refusal) {
	if r.retryHeader != "" {
		w.Header().Set("Retry-After", r.retryHeader)
	}
}
