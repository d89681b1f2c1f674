package envd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// Frames of a stream: a byte of flags, four bytes of size, and size bytes of payload.
const (
	prefixSize     = 5
	flagCompressed = 1
	flagEnd        = 2    // of Connect
	flagTrailers   = 0x80 // of gRPC-Web
	// maxEventFrame bounds the frames that are decoded, in bytes: start and end events are
	// small, and output is not observed.
	maxEventFrame = 8 << 10
)

func frameSize(prefix []byte) int64 { return int64(binary.BigEndian.Uint32(prefix[1:prefixSize])) }

// observedBody is the body of a response that is observed while it is read.
type observedBody struct {
	io.ReadCloser

	res  *http.Response
	sent int64
}

// errCut is the error of a response that its reader closed early.
var errCut = sandpit.Errorf(sandpit.Canceled, "the response was not read to its end")

// observedContent counts the content of a file or tree.
type observedContent struct {
	observedBody

	x *observation
}

// Read implements io.Reader.
func (a *observedContent) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.sent += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		a.x.reportOnce(a.sent, transportError(a.x.ctx, err))
	} else if err != nil {
		a.x.reportOnce(a.sent, nil)
	}
	return n, err
}

// Close implements io.Closer. The bytes read so far count as read.
func (a *observedContent) Close() error {
	a.x.reportOnce(a.sent, nil)
	return a.ReadCloser.Close()
}

// observedNames is a response that names the written files. The request has the names too, but
// between the contents.
type observedNames struct {
	observedBody

	x    *observation
	text []byte
}

// Read implements io.Reader.
func (a *observedNames) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.text = append(a.text, p[:min(n, maxObservedAnswer-len(a.text))]...)
	if err != nil {
		a.endAnswer()
	}
	return n, err
}

// Close implements io.Closer.
func (a *observedNames) Close() error {
	a.endAnswer()
	return a.ReadCloser.Close()
}

func (a *observedNames) endAnswer() {
	var files []struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(a.text, &files) == nil && len(files) > 0 {
		a.x.mu.Lock()
		a.x.call.Path = files[0].Path
		if len(files) > 1 {
			a.x.call.Files = len(files)
		}
		a.x.mu.Unlock()
	}
	a.x.reportOnce(0, nil)
}

// observedProcess is the stream of events of a process. It is used by one goroutine at a time.
type observedProcess struct {
	observedBody

	x       *observation
	command bool

	prefix  [prefixSize]byte
	have    int // bytes of the prefix, and then of the frame
	left    int64
	frame   []byte
	started bool
	failure error // the guest's error at the end of the stream
	over    bool
}

// Read implements io.Reader.
func (a *observedProcess) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.feedStream(p[:n])
	switch {
	case errors.Is(err, io.EOF):
		if a.failure == nil {
			a.failure = grpcError(a.res.Trailer)
		}
		a.endStream(a.failure)
	case err != nil:
		a.endStream(transportError(a.x.ctx, err))
	}
	return n, err
}

// Close implements io.Closer.
func (a *observedProcess) Close() error {
	a.endStream(errCut)
	return a.ReadCloser.Close()
}

// feedStream handles received bytes of the stream.
func (a *observedProcess) feedStream(p []byte) {
	for len(p) > 0 && !a.over {
		if a.have < prefixSize {
			n := copy(a.prefix[a.have:], p)
			a.have, p = a.have+n, p[n:]
			if a.have == prefixSize {
				a.left = frameSize(a.prefix[:])
				a.frame = a.frame[:0]
			}
		}
		if a.have == prefixSize {
			n := min(a.left, int64(len(p)))
			if a.left+int64(len(a.frame)) <= maxEventFrame {
				a.frame = append(a.frame, p[:n]...)
			}
			a.left, p = a.left-n, p[n:]
			if a.left == 0 {
				a.handleFrame()
				a.have = 0
			}
		}
	}
}

// handleFrame handles a whole frame.
func (a *observedProcess) handleFrame() {
	flags := a.prefix[0]
	if frameSize(a.prefix[:]) > maxEventFrame {
		return
	}
	text := a.frame
	if flags&flagCompressed != 0 {
		h := a.res.Header
		var err error
		if text, err = decompress(text, h.Get("Connect-Content-Encoding")+h.Get("Grpc-Encoding"), maxEventFrame); err != nil {
			return
		}
	}
	switch {
	case flags&flagEnd != 0:
		a.failure = connectError(text)
	case flags&flagTrailers != 0:
		a.failure = grpcError(trailersOf(text))
	default:
		a.handleEvent(text)
	}
}

// handleEvent handles an event. It does not decode output, which is most of the events.
func (a *observedProcess) handleEvent(text []byte) {
	kind, _, _ := mime.ParseMediaType(a.res.Header.Get("Content-Type"))
	isJSON := strings.HasSuffix(kind, "json")
	if isJSON && bytes.Contains(text, []byte(`"data"`)) || !isJSON && isOutput(text) {
		return
	}
	var m process.StartResponse // has the same encoding as ConnectResponse
	if decodeMessage(text, isJSON, &m) != nil {
		return
	}
	switch end := m.GetEvent().GetEnd(); {
	case m.GetEvent().GetStart() != nil && !a.started:
		a.started = true
		a.x.reportOnce(0, nil)
	case end != nil:
		a.over = true
		a.x.reportOnce(0, nil)
		a.x.reportEnd(a.command, exitStatus(end), nil)
	}
}

// isOutput reports whether a message has an output event: its first field is the event, and
// the event's second field is output.
func isOutput(text []byte) bool {
	if len(text) < 3 || text[0] != 1<<3|2 {
		return false
	}
	_, n := binary.Uvarint(text[1:])
	return n > 0 && len(text) > 1+n && text[1+n] == 2<<3|2
}

// endStream reports the end of the stream, unless the process has ended before.
func (a *observedProcess) endStream(err error) {
	if a.over {
		return
	}
	a.over = true
	if err == nil {
		err = sandpit.Errorf(sandpit.Gone, "the sandbox ended: %w", io.ErrUnexpectedEOF)
	}
	a.x.reportOnce(0, err)
	a.x.reportEnd(a.command, sandpit.ExitStatus{}, err)
}

// connectError returns the error in the last frame of Connect, or nil.
func connectError(text []byte) error {
	var last struct {
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &last) != nil || last.Error == nil {
		return nil //nolint:nilerr // an invalid frame has no error
	}
	var code connect.Code
	if code.UnmarshalText([]byte(last.Error.Code)) != nil {
		code = connect.CodeInternal
	}
	return sandpit.Errorf(wireCode(code), "%s", plainText(last.Error.Message))
}

// grpcError returns the error in headers or trailers of gRPC, or nil.
func grpcError(h http.Header) error {
	n, err := strconv.ParseUint(h.Get("Grpc-Status"), 10, 8)
	if err != nil || n == 0 {
		return nil //nolint:nilerr // an invalid status counts as none
	}
	return sandpit.Errorf(wireCode(connect.Code(n)), "%s", plainText(h.Get("Grpc-Message")))
}

// trailersOf parses the trailers in the last frame of gRPC-Web.
func trailersOf(text []byte) http.Header {
	h := make(http.Header)
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found {
			h.Add(name, strings.TrimSpace(value))
		}
	}
	return h
}
