package interpreter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	maxBody   = 16 << 20         // bytes of a request: code and environment
	writeTime = 60 * time.Second // how long a client may take to read a line
)

// Handler serves the interpreter over HTTP: see the package comment. /health returns 503 until ready is closed.
func (s *Service) Handler(ready <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /execute", s.serveExecute)
	mux.HandleFunc("GET /contexts", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Contexts()) })
	mux.HandleFunc("POST /contexts", s.serveCreate)
	mux.HandleFunc("DELETE /contexts/{id}", func(w http.ResponseWriter, r *http.Request) {
		writeStatus(w, s.Remove(r.PathValue("id")))
	})
	mux.HandleFunc("POST /contexts/{id}/restart", func(w http.ResponseWriter, r *http.Request) {
		writeStatus(w, s.Restart(r.Context(), r.PathValue("id")))
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-ready:
			writeJSON(w, "OK")
		default:
			http.Error(w, "the kernels are starting", http.StatusServiceUnavailable)
		}
	})
	return mux
}

func (s *Service) serveExecute(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Code     *string           `json:"code"`
		Context  string            `json:"context_id"`
		Language string            `json:"language"`
		Env      map[string]string `json:"env_vars"`
	}
	if !readJSON(w, r, &req) {
		return
	}
	if req.Code == nil {
		writeStatus(w, sandpit.Errorf(sandpit.Invalid, "the request has no code"))
		return
	}
	lines := &lines{w: w, control: http.NewResponseController(w)}
	run := Request{Code: *req.Code, Context: req.Context, Language: req.Language, Env: req.Env}
	if err := s.Run(r.Context(), run, lines.writeEvent); err != nil && !lines.begun {
		writeStatus(w, err)
	} else if err != nil {
		// The client gets a stream without an end.
		panic(http.ErrAbortHandler)
	}
}

func (s *Service) serveCreate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Language string `json:"language"`
		Dir      string `json:"cwd"`
	}
	if !readJSON(w, r, &req) {
		return
	}
	c, err := s.Create(r.Context(), req.Language, req.Dir)
	if err != nil {
		writeStatus(w, err)
		return
	}
	writeJSON(w, c)
}

// lines writes events to a client as lines.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func (l *lines) writeEvent(e Event) error {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
		l.w.Header().Set("X-Accel-Buffering", "no")
	}
	line, err := json.Marshal(toE2B(e))
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	if err := l.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.control.Flush()
}

// toE2B returns an event as E2B's interpreter sends it. E2B has another name for the end of a kernel, which its
// clients recognize.
func toE2B(e Event) Event {
	if f, ok := e.(Failure); ok && f.Name == FailKernel && f.Traceback == "" {
		return Failure{Name: "ContextRestarting", Value: "Context was restarted: " + f.Value}
	}
	return e
}

// readJSON decodes a request's body, which may be empty. After an error it writes the response and returns false.
func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into)
	if err == nil || errors.Is(err, io.EOF) {
		return true
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		http.Error(w, fmt.Sprintf("the request is larger than %d bytes", large.Limit), http.StatusRequestEntityTooLarge)
		return false
	}
	writeStatus(w, sandpit.Errorf(sandpit.Invalid, "body: %w", err))
	return false
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// statuses are the HTTP statuses of codes; all other codes have 500.
var statuses = map[sandpit.Code]int{
	sandpit.Invalid:     http.StatusBadRequest,
	sandpit.NotFound:    http.StatusNotFound,
	sandpit.Unsupported: http.StatusNotFound, // E2B's clients show no other status's text
	sandpit.Exhausted:   http.StatusTooManyRequests,
	sandpit.Unavailable: http.StatusServiceUnavailable,
}

// writeStatus writes the response to a request without a result.
func writeStatus(w http.ResponseWriter, err error) {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	status, ok := statuses[sandpit.CodeOf(err)]
	if !ok {
		status = http.StatusInternalServerError
	}
	http.Error(w, err.Error(), status)
}
