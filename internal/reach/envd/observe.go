package envd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem/filesystemconnect"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process/processconnect"
)

// maxObserved bounds the bytes of a request that the observer reads: as many as a guest takes
// as one message. maxObservedAnswer is the bound for a response that names files.
const (
	maxObserved       = 4<<20 + prefixSize
	maxObservedAnswer = 64 << 10
	// maxObservedParts bounds the arguments of an observed command.
	maxObservedParts = 64 << 10
)

// observed is the observer of a client. The zero value has none.
type observed struct {
	observer atomic.Pointer[sandpit.GuestObserver]
}

// Observe implements sandpit.ObservedGuest.
func (c *Client) Observe(o sandpit.GuestObserver) {
	o = o.OrNobody()
	c.auth.observer.Store(&o)
}

// Observer implements sandpit.ObservedGuest.
func (c *Client) Observer() sandpit.GuestObserver {
	if o := c.auth.observer.Load(); o != nil {
		return *o
	}
	return sandpit.GuestObserver{}.OrNobody()
}

// observation is one observed call. It observes the bytes of the request and the response, so
// that it covers requests of every origin: each needs the guest's key, and so passes
// authorized.
type observation struct {
	ctx   context.Context //nolint:containedctx // the context of this call
	to    sandpit.GuestObserver
	begin time.Time
	body  *bodyRecord // nil for a request without a body
	read  func(*observation, *sandpit.GuestCall) bool

	mu       sync.Mutex
	call     sandpit.GuestCall
	reported bool
}

// beginObservation starts to observe a call. It returns nil for a call that is not observed.
func (o *observed) beginObservation(r *http.Request) *observation {
	to := o.observer.Load()
	if to == nil {
		return nil
	}
	read, action := readerOf(r)
	if read == nil {
		return nil
	}
	x := &observation{ctx: r.Context(), to: *to, begin: time.Now(), read: read, call: sandpit.GuestCall{Action: action}}
	if r.Body != nil && r.Body != http.NoBody {
		x.body = &bodyRecord{account: memory.AccountOf(r.Context()), header: r.Header, over: isContent(r.URL.Path)}
		r.Body = &recordedBody{r.Body, x.body}
		if again := r.GetBody; again != nil {
			r.GetBody = func() (io.ReadCloser, error) {
				body, err := again()
				if err == nil {
					body = x.body.restartBody(body)
				}
				return body, err
			}
		}
	}
	if strings.HasPrefix(string(action), "read ") || strings.HasPrefix(string(action), "write ") {
		x.call.Path = r.URL.Query().Get("path")
	}
	return x
}

// isContent reports whether the body of a request to a path is the content of files, and not
// a message.
func isContent(path string) bool { return path == oneFile || path == wholeTree }

// readerOf returns the function that reads a call from its request, or nil if the call is
// not observed.
func readerOf(r *http.Request) (read func(*observation, *sandpit.GuestCall) bool, action sandpit.GuestAction) {
	reads := r.Method == http.MethodGet
	switch p := r.URL.Path; {
	case p == processconnect.ProcessStartProcedure:
		return readStart, sandpit.RunCommand
	case p == processconnect.ProcessConnectProcedure:
		return readConnect, sandpit.AttachCommand
	case p == processconnect.ProcessSendSignalProcedure:
		return readSignal, sandpit.SignalCommand
	case p == filesystemconnect.FilesystemMakeDirProcedure:
		return readMakeDir, sandpit.MakeDirectory
	case p == filesystemconnect.FilesystemMoveProcedure:
		return readMove, sandpit.MoveFile
	case p == filesystemconnect.FilesystemRemoveProcedure:
		return readRemove, sandpit.RemoveFile
	case p == oneFile && reads:
		return readNothing, sandpit.ReadFile
	case p == oneFile && r.Method == http.MethodPost:
		return readNothing, sandpit.WriteFile
	case p == oneFile+"/compose" && r.Method == http.MethodPost:
		return readCompose, sandpit.WriteFile
	case p == wholeTree && reads:
		return readNothing, sandpit.ReadTree
	case p == wholeTree && r.Method == http.MethodPost:
		return readNothing, sandpit.WriteTree
	}
	return nil, ""
}

func readNothing(*observation, *sandpit.GuestCall) bool { return true }

func readStart(x *observation, c *sandpit.GuestCall) bool {
	var m process.StartRequest
	if !x.body.parseMessage(&m) {
		return false
	}
	if m.GetPty() != nil {
		c.Action = sandpit.OpenTerminal
	}
	*c = sandpit.CommandCall(c.Action, append([]string{m.GetProcess().GetCmd()}, m.GetProcess().GetArgs()...))
	return true
}

func readConnect(x *observation, c *sandpit.GuestCall) bool {
	var m process.ConnectRequest
	ok := x.body.parseMessage(&m)
	c.PID = int(m.GetProcess().GetPid())
	return ok
}

func readSignal(x *observation, c *sandpit.GuestCall) bool {
	var m process.SendSignalRequest
	ok := x.body.parseMessage(&m)
	c.PID, c.Signal = int(m.GetProcess().GetPid()), sandpit.Signal(m.GetSignal())
	return ok
}

func readMakeDir(x *observation, c *sandpit.GuestCall) bool {
	var m filesystem.MakeDirRequest
	ok := x.body.parseMessage(&m)
	c.Path = m.GetPath()
	return ok
}

func readMove(x *observation, c *sandpit.GuestCall) bool {
	var m filesystem.MoveRequest
	ok := x.body.parseMessage(&m)
	c.Path, c.To = m.GetSource(), m.GetDestination()
	return ok
}

func readRemove(x *observation, c *sandpit.GuestCall) bool {
	var m filesystem.RemoveRequest
	ok := x.body.parseMessage(&m)
	c.Path = m.GetPath()
	return ok
}

func readCompose(x *observation, c *sandpit.GuestCall) bool {
	var m struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
	}
	err := json.Unmarshal(x.body.recordedBytes(), &m)
	c.Path, c.Files = m.Destination, len(m.Sources)
	return err == nil
}

// observeResponse observes the response to the request. It takes the results of RoundTrip and
// returns those that RoundTrip must return.
func (x *observation) observeResponse(res *http.Response, err error) (*http.Response, error) {
	if x == nil {
		return res, err
	}
	command := x.call.Action == sandpit.RunCommand
	if err == nil && res.StatusCode/100 != 2 && res.StatusCode != http.StatusNotModified && res.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		x.reportOnce(0, statusError(res.StatusCode))
		x.reportEnd(command, sandpit.ExitStatus{}, statusError(res.StatusCode))
		return res, nil
	}
	switch {
	case err != nil:
		x.reportOnce(0, transportError(x.ctx, err))
		x.reportEnd(command, sandpit.ExitStatus{}, transportError(x.ctx, err))
	case command || x.call.Action == sandpit.AttachCommand:
		res.Body = &observedProcess{observedBody: observedBody{ReadCloser: res.Body, res: res}, x: x, command: command}
	case x.call.Action == sandpit.ReadFile || x.call.Action == sandpit.ReadTree:
		res.Body = &observedContent{observedBody: observedBody{ReadCloser: res.Body, res: res}, x: x}
	case x.call.Action == sandpit.WriteFile && x.call.Path == "":
		res.Body = &observedNames{observedBody: observedBody{ReadCloser: res.Body, res: res}, x: x}
	default:
		x.reportOnce(0, grpcError(res.Header))
	}
	return res, err
}

func statusError(status int) error {
	return sandpit.Errorf(statusCode(status), "unexpected response of the guest (HTTP %d)", status)
}

// reportOnce reports the call to the observer, once. sent is the size of the response's
// content.
func (x *observation) reportOnce(sent int64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.reported {
		return
	}
	x.reported = true
	c := x.call
	if !x.read(x, &c) {
		c.Program = unreadable
	}
	c.Bytes, c.Took, c.Err = sent, time.Since(x.begin), err
	if c.Action == sandpit.WriteFile || c.Action == sandpit.WriteTree {
		c.Bytes = x.body.byteCount()
	}
	x.body.dropRecord()
	x.to.Called(x.ctx, c)
}

// unreadable is the program of a command whose request is invalid or too large to observe.
const unreadable = "(unreadable)"

func (x *observation) reportEnd(command bool, status sandpit.ExitStatus, err error) {
	if command {
		x.to.Ended(x.ctx, time.Since(x.begin), status, err)
	}
}

// bodyRecord records and counts what the transport reads of a request. All methods may be called
// concurrently, and on nil for a request without a body.
type bodyRecord struct {
	account *memory.Account
	header  http.Header

	mu   sync.Mutex
	data []byte
	n    int64
	over bool // nothing is recorded any more
}

// recordBytes counts and records read bytes.
func (t *bodyRecord) recordBytes(p []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += int64(len(p))
	if t.over || len(p) == 0 {
		return nil
	}
	if len(t.data)+len(p) > maxObserved {
		t.account.Return(int64(len(t.data)))
		t.over, t.data = true, nil
		return nil
	}
	if err := t.account.Reserve(int64(len(p))); err != nil {
		return err
	}
	t.data = append(t.data, p...)
	return nil
}

// restartBody discards the recording and returns body, a new reader of the same content, with
// the record on it.
func (t *bodyRecord) restartBody(body io.ReadCloser) io.ReadCloser {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.account.Return(int64(len(t.data)))
	t.data, t.n = nil, 0
	return &recordedBody{body, t}
}

// recordedBody is a body whose bytes a bodyRecord records.
type recordedBody struct {
	io.ReadCloser

	tap *bodyRecord
}

// Read implements io.Reader.
func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if full := b.tap.recordBytes(p[:n]); full != nil {
		return 0, full
	}
	return n, err
}

func (t *bodyRecord) recordedBytes() []byte {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.data)
}

func (t *bodyRecord) byteCount() int64 {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// dropRecord drops the recording and returns its memory to the account.
func (t *bodyRecord) dropRecord() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.account.Return(int64(len(t.data)))
	t.data, t.over = nil, true
}

// parseMessage parses the first message of the body, in any form that guests accept.
func (t *bodyRecord) parseMessage(m proto.Message) bool {
	text := t.recordedBytes()
	if text == nil {
		return false
	}
	kind, _, _ := mime.ParseMediaType(t.header.Get("Content-Type"))
	encoding := t.header.Get("Content-Encoding")
	if base, enveloped := strings.CutPrefix(kind, "application/connect+"); enveloped || strings.HasPrefix(kind, "application/grpc") {
		encoding = t.header.Get("Connect-Content-Encoding") + t.header.Get("Grpc-Encoding")
		flags, payload, ok := firstFrame(text)
		if !ok {
			return false
		}
		if flags&flagCompressed == 0 {
			encoding = ""
		}
		text = payload
		if enveloped {
			kind = base
		}
	}
	text, err := decompress(text, encoding, maxObserved)
	if err != nil {
		return false
	}
	return decodeMessage(text, strings.HasSuffix(kind, "json"), m) == nil
}

// firstFrame returns the first frame of a stream.
func firstFrame(text []byte) (flags byte, payload []byte, ok bool) {
	if len(text) < prefixSize {
		return 0, nil, false
	}
	size := frameSize(text)
	if size > int64(len(text)-prefixSize) {
		return 0, nil, false
	}
	return text[0], text[prefixSize : prefixSize+size], true
}

var errTooLarge = errors.New("the message is too large to observe")

// decompress returns the decompressed text if it has at most most bytes.
func decompress(text []byte, encoding string, most int64) ([]byte, error) {
	switch encoding {
	case "", "identity":
		return text, nil
	case "gzip":
	default:
		return nil, errors.ErrUnsupported
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(z, most+1))
	if err == nil && int64(len(plain)) > most {
		err = errTooLarge
	}
	return plain, err
}

func decodeMessage(text []byte, isJSON bool, m proto.Message) error {
	if isJSON {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, m)
	}
	return codec{maxObservedParts}.Unmarshal(text, m)
}
