package e2b

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process/processconnect"
)

// Headers of requests by which sandpit's guest does more than E2B's.
const (
	idHeader     = "Sandpit-Command-Id"
	withinHeader = "Sandpit-Within"
	modeHeader   = "Sandpit-Mode"
)

// The paths of content, and of sandpit's services.
const (
	filesPath   = "/files"
	treePath    = "/tree"
	ownServices = "/sandpit."
)

// bridge serves the protocol of sandpit's guest with E2B's: it sets the default user and working directory, packs and
// unpacks directories, sets permissions, and refuses what E2B's guest would ignore.
type bridge struct{ g *cloudGuest }

// RoundTrip implements http.RoundTripper.
func (t bridge) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.serve(r)
	if err != nil && r.Body != nil {
		_ = r.Body.Close() // as every round tripper does
	}
	return res, err
}

func (t bridge) serve(r *http.Request) (*http.Response, error) {
	if err := t.g.b.checkUsable(r.Context()); err != nil { // afterwards it is known which guest it is
		return nil, err
	}
	next := t.g.client.HTTP()
	if t.g.extended.Load() {
		return next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	clean := path.Clean("/" + r.URL.Path)
	switch {
	case len(r.Header[withinHeader]) > 0:
		return nil, sandpit.Errorf(sandpit.Unsupported, "E2B's guest cannot confine file calls to directories")
	case strings.HasPrefix(clean, ownServices), clean == processconnect.ProcessStartProcedure && r.Header.Get(idHeader) != "":
		return refuse(r, "E2B's guest has no command log")
	case clean == treePath:
		return t.serveTree(r)
	case clean == filesPath:
		return t.serveFile(r, next)
	}
	t.setUser(r)
	if clean == processconnect.ProcessStartProcedure {
		if err := t.setWorkDir(r); err != nil {
			return nil, err
		}
	}
	return next.RoundTrip(r)
}

// setUser has a call that names no user be one of the sandbox's default user.
func (t bridge) setUser(r *http.Request) {
	if r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(t.g.user("")+":")))
	}
}

// refuse returns a response that says that the guest cannot carry out a call, in the form of Connect's protocol.
func refuse(r *http.Request, text string) (*http.Response, error) {
	problem := map[string]string{"code": "unimplemented", "message": text}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	streams := strings.HasPrefix(kind, "application/connect+")
	if err != nil || !streams && kind != "application/json" && kind != "application/proto" {
		return nil, sandpit.Errorf(sandpit.Unsupported, "%s", text)
	}
	if r.Body != nil {
		_ = r.Body.Close() // as every round tripper does
	}
	if !streams {
		data, err := json.Marshal(problem)
		return newResponse(r, http.StatusNotImplemented, http.Header{"Content-Type": {"application/json"}}, io.NopCloser(bytes.NewReader(data))), err
	}
	data, err := json.Marshal(map[string]any{"error": problem})
	return newResponse(r, http.StatusOK, http.Header{"Content-Type": {kind}}, io.NopCloser(bytes.NewReader(newFrame(frameEnd, data)))), err
}

// newFrame returns a message of a stream.
func newFrame(flags byte, data []byte) []byte {
	out := make([]byte, framePrefix, framePrefix+len(data))
	out[0] = flags
	binary.BigEndian.PutUint32(out[1:], uint32(len(data))) //nolint:gosec // it is bounded
	return append(out, data...)
}

func newResponse(r *http.Request, status int, header http.Header, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: body, ContentLength: -1, Request: r,
	}
}

// serveTree reads or writes a directory.
func (t bridge) serveTree(r *http.Request) (*http.Response, error) {
	ctx, query := r.Context(), r.URL.Query()
	switch r.Method {
	case http.MethodGet:
		stream, err := t.g.ReadTree(ctx, query.Get("username"), query.Get("path"))
		if err != nil {
			return nil, err
		}
		return newResponse(r, http.StatusOK, http.Header{"Content-Type": {"application/x-tar"}}, stream), nil
	case http.MethodPost:
		var content io.Reader = http.NoBody
		if r.Body != nil {
			defer r.Body.Close()
			content = r.Body
		}
		if err := t.g.WriteTree(ctx, query.Get("username"), query.Get("path"), content); err != nil {
			return nil, err
		}
		return newResponse(r, http.StatusNoContent, make(http.Header), http.NoBody), nil
	}
	return nil, sandpit.Errorf(sandpit.Unsupported, "method %.20q of a directory", r.Method)
}

// serveFile reads or writes a file, as the sandbox's default user if the request names none, and sets permissions after
// the content was written.
func (t bridge) serveFile(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	query := r.URL.Query()
	user := t.g.user(query.Get("username"))
	query.Set("username", user)
	u := *r.URL
	u.RawQuery = query.Encode()
	r.URL = &u
	mode := r.Header.Get(modeHeader)
	if mode == "" {
		return next.RoundTrip(r)
	}
	bits, err := strconv.ParseUint(mode, 8, 32)
	if err != nil || bits > 0o777 || query.Get("path") == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "permissions %.20q of file %.100q", mode, query.Get("path"))
	}
	r.Header.Del(modeHeader)
	res, err := next.RoundTrip(r)
	if err != nil || res.StatusCode/100 != 2 {
		return res, err
	}
	if err := t.setMode(r.Context(), user, query.Get("path"), mode); err != nil {
		_ = res.Body.Close() // has only the name
		return nil, err
	}
	return res, nil
}

func (t bridge) setMode(ctx context.Context, user, name, mode string) error {
	f, err := t.g.client.Stat(ctx, user, name)
	if err != nil {
		return err
	}
	return t.g.run(ctx, user, "set the permissions of "+name, "chmod", mode, f.Path)
}

const (
	// framePrefix is the length of what precedes a message in a stream: flags, and the message's length.
	framePrefix = 5
	frameGzip   = 1
	frameEnd    = 2
	// maxStart bounds a request to start a process, in bytes.
	maxStart = 4 << 20
)

// setWorkDir has a process that names no working directory start in the sandbox's.
func (t bridge) setWorkDir(r *http.Request) error {
	dir := workDirOf(t.g.b.spec)
	if dir == sandpit.HomeDir || r.Body == nil {
		return nil
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "start a process: content type %.100q", r.Header.Get("Content-Type"))
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxStart+1))
	_ = r.Body.Close() // was read
	if err != nil {
		return err
	}
	if len(data) > maxStart {
		return sandpit.Errorf(sandpit.Invalid, "start a process: the request has more than %d MiB", maxStart>>20)
	}
	encoding := r.Header.Get("Connect-Content-Encoding")
	if strings.HasPrefix(kind, "application/grpc") {
		encoding = r.Header.Get("Grpc-Encoding")
	}
	if data, err = addWorkDir(data, strings.HasSuffix(kind, "+json"), encoding, dir); err != nil {
		return err
	}
	r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
	return nil
}

// addWorkDir adds a working directory to the frame of a request that names none.
func addWorkDir(frame []byte, isJSON bool, encoding, dir string) ([]byte, error) {
	if len(frame) < framePrefix || int64(binary.BigEndian.Uint32(frame[1:])) != int64(len(frame)-framePrefix) {
		return nil, sandpit.Errorf(sandpit.Invalid, "start a process: the request is not one message")
	}
	data := frame[framePrefix:]
	if frame[0]&frameGzip != 0 {
		var err error
		if data, err = unzip(data, encoding); err != nil {
			return nil, err
		}
	}
	decode, encode := proto.Unmarshal, proto.Marshal
	if isJSON {
		decode, encode = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal, protojson.Marshal
	}
	var start process.StartRequest
	if err := decode(data, &start); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "start a process: %w", err)
	}
	if start.GetProcess() == nil || start.GetProcess().GetCwd() != "" {
		return frame, nil
	}
	start.Process.Cwd = &dir
	data, err := encode(&start)
	if err != nil {
		return nil, err
	}
	return newFrame(0, data), nil
}

func unzip(data []byte, encoding string) ([]byte, error) {
	if encoding != "gzip" {
		return nil, sandpit.Errorf(sandpit.Unsupported, "start a process: compression %.40q", encoding)
	}
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(reader, maxStart+1))
	}
	if err != nil || len(data) > maxStart {
		return nil, sandpit.Errorf(sandpit.Invalid, "start a process: the compressed request cannot be read")
	}
	return data, nil
}
