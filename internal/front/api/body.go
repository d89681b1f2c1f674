package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// restTimeout is how long reading the unused rest of a body may take, and refusedTimeout
	// that of a request that the edge has refused.
	restTimeout    = 5 * time.Second
	refusedTimeout = time.Second
	// maxRest is how many bytes of it are read at most.
	maxRest = 256 << 20
	// bodyTimeout is how long reading a complete body may take.
	bodyTimeout = 60 * time.Second
)

// BodyCost is how many bytes of memory each byte of a JSON body usually takes: as text, as
// values, and as what these are converted to.
const BodyCost = 4

// ReadBody reads the body of a request of up to most bytes, which must arrive within a minute.
// Read deadlines of a connection end requests, so callers must not set their own. ReadBody
// reserves cost bytes of the request's account for each byte, and memory.ValueCost for each value of
// JSON: a body of few bytes can have many. Invalid: the body is larger or
// incomplete. Exhausted: there is not enough memory.
func ReadBody(w http.ResponseWriter, r *http.Request, most, cost int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // connections without deadlines need none
	text, err := memory.ReadAll(r.Context(), http.MaxBytesReader(w, r.Body, most), most, cost)
	_ = control.SetReadDeadline(time.Time{})
	if err == nil {
		err = memory.AccountOf(r.Context()).Reserve(new(memory.ValueCounter).Count(text) * memory.ValueCost)
	}
	if sandpit.CodeOf(err) == sandpit.Exhausted {
		return nil, err
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, sandpit.Errorf(sandpit.Invalid, "the request body is larger than %d bytes", large.Limit)
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "the request body is incomplete")
	}
	return text, nil
}

// ReadJSON decodes the JSON body of a request, which it reads with ReadBody, and returns its size.
// Without a body it leaves to unchanged. Unknown fields are ignored, because later versions of the
// clients of other APIs send more. Errors are those of ReadBody. Invalid: the body is not JSON, or
// a value has another type.
func ReadJSON(w http.ResponseWriter, r *http.Request, most int64, to any) (size int64, err error) {
	text, err := ReadBody(w, r, most, BodyCost)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return int64(len(text)), err
	}
	if err := json.Unmarshal(text, to); err != nil {
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // the value itself may be a secret
			return 0, sandpit.Errorf(sandpit.Invalid, "%.100s must be of another type", kind.Field)
		}
		return 0, sandpit.Errorf(sandpit.Invalid, "the request body is not JSON")
	}
	return int64(len(text)), nil
}

// LimitRest limits the time for reading the rest of a body to 5 seconds, also for the HTTP
// server itself, which reads it after the response.
func LimitRest(w http.ResponseWriter) { limitRest(w, false) }

func limitRest(w http.ResponseWriter, refused bool) {
	limit := restTimeout
	if refused {
		limit = refusedTimeout
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(limit)) // connections without deadlines need none
}

// DrainBody reads the rest of a body after the response, up to 256 MiB for up to 5 seconds:
// closing a connection with unread data can make the client lose the response. It is for
// HTTP/1.1 in full duplex; the response must be complete, and the connection must be closed
// afterwards.
func DrainBody(w http.ResponseWriter, body io.Reader) {
	LimitRest(w)
	if http.NewResponseController(w).Flush() == nil {
		_, _ = io.CopyN(io.Discard, body, maxRest) // the response is complete anyway
	}
}
