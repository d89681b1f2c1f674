package api

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// restTimeout is how long the rest of a body may take that nobody has asked for, and
	// refusedTimeout that of a request that the edge has refused.
	restTimeout    = 5 * time.Second
	refusedTimeout = time.Second
	// maxRest is how many bytes of it are read.
	maxRest = 256 << 20
	// bodyTimeout is how long a body may take that is read as a whole.
	bodyTimeout = 60 * time.Second
)

// BodyCost is how many bytes of memory each byte of a JSON body usually takes: as it comes,
// as values, and as what is made of these.
const BodyCost = 4

// ReadBody reads the body of a request of up to most bytes, which must come within a minute, so that nobody else has to:
// a limit of reading that is left while the request goes on would end it. It takes cost bytes of the request's
// account for each byte. Invalid: it is larger, or breaks off. Exhausted: there is no memory for it.
func ReadBody(w http.ResponseWriter, r *http.Request, most, cost int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // what cannot have one needs none
	text, err := memory.ReadAll(r.Context(), http.MaxBytesReader(w, r.Body, most), most, cost)
	_ = control.SetReadDeadline(time.Time{})
	if sandpit.CodeOf(err) == sandpit.Exhausted {
		return nil, err
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, sandpit.Errorf(sandpit.Invalid, "the request is larger than %d bytes", large.Limit)
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "the request does not come as a whole")
	}
	return text, nil
}

// LimitRest has what is left of a body come soon, or never: who reads it after the answer,
// if only the HTTP server itself, waits for 5 seconds.
func LimitRest(w http.ResponseWriter) { limitRest(w, false) }

func limitRest(w http.ResponseWriter, refused bool) {
	limit := restTimeout
	if refused {
		limit = refusedTimeout
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(limit)) // what cannot have one needs none
}

// DrainBody reads what is left of the body of a request that was answered before its end, of
// 256 MiB for 5 seconds at most: to close a connection while something is on its way has the
// other side lose the answer. It is for a connection of HTTP/1.1 in full duplex, which is to
// be closed, and the answer must be complete.
func DrainBody(w http.ResponseWriter, body io.Reader) {
	LimitRest(w)
	if http.NewResponseController(w).Flush() == nil {
		_, _ = io.CopyN(io.Discard, body, maxRest) // that it breaks is nobody's business any more
	}
}
