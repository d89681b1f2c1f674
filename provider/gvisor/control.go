package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
)

// The control protocol: a client connects to a socket, sends one packet with a request and its
// descriptors, and receives one packet with the reply. Closing the connection cancels the call.

const (
	// maxPacket bounds a request or reply, in bytes. The kernel's default socket buffer has a
	// little more than 200 KiB.
	maxPacket = 128 << 10
	// maxFiles bounds the descriptors of one packet; the kernel's limit is 253.
	maxFiles = 64

	controlName = "control"
)

type operation string

const (
	opCreate  operation = "create"
	opDial    operation = "dial"
	opSettle  operation = "settle" // the guest has answered
	opWait    operation = "wait"
	opStats   operation = "stats"
	opPause   operation = "pause"
	opResume  operation = "resume"
	opResize  operation = "resize"
	opDestroy operation = "destroy"

	opSave     operation = "save"     // write the layer to the request's files, and stay frozen
	opLayer    operation = "layer"    // write the layer to the request's files
	opHeld     operation = "held"     // return a heldFile
	opState    operation = "state"    // write the kernel to the request's files
	opUnsave   operation = "unsave"   // continue after opState
	opIdentify operation = "identify" // replace the identity by the request's file

	// Operations of a gateway, on a socket of its own.
	opPolicy    operation = "policy"
	opDecisions operation = "decisions"
	opRecall    operation = "recall" // give a gateway the decisions of its predecessor
	opSecrets   operation = "secrets"
	opTraffic   operation = "traffic"
	opExplain   operation = "explain"
	opAuthority operation = "authority"

	// The operation of the reaper: what the dialer may open for a gateway besides public addresses.
	opGrant operation = "grant"
)

type request struct {
	Op     operation      `json:"op"`
	ID     sandpit.ID     `json:"id"`
	Port   int            `json:"port,omitempty"`
	Create *createRequest `json:"create,omitempty"`
	// Save is that of opState.
	Save *saveRequest `json:"save,omitempty"`
	// Limits are those of opResize.
	Limits *sandpit.Resources `json:"limits,omitempty"`
	// Held is that of opHeld.
	Held heldFile `json:"held,omitempty"`
	// GoOn has the sandbox continue after opSave.
	GoOn bool `json:"go_on,omitempty"`
	// Stopped means that opDestroy does not end the sandbox itself: it is stopped or suspended.
	Stopped bool `json:"stopped,omitempty"`

	Policy  *sandpit.NetworkPolicy `json:"policy,omitempty"`
	After   int64                  `json:"after,omitempty"`
	Secrets map[string]string      `json:"secrets,omitempty"`
	Target  string                 `json:"target,omitempty"`
	// Decisions are those of opRecall.
	Decisions []sandpit.NetworkDecision `json:"decisions,omitempty"`
	// Grant is that of opGrant; Fresh means that the gateway has not been started yet.
	Grant *dialer.Grant `json:"grant,omitempty"`
	Fresh bool          `json:"fresh,omitempty"`
}

type reply struct {
	Error *replyError   `json:"error,omitempty"`
	Exit  *sandpit.Exit `json:"exit,omitempty"`
	// Stopped means that the sandbox is no longer in the engine, but has not ended.
	Stopped bool `json:"stopped,omitempty"`
	// Notes are texts for users about limits that are not enforced.
	Notes []string       `json:"notes,omitempty"`
	Stats *sandpit.Stats `json:"stats,omitempty"`
	// Paused means that the guest cannot report what Stats lacks.
	Paused bool `json:"paused,omitempty"`

	Decisions []sandpit.NetworkDecision `json:"decisions,omitempty"`
	Traffic   *sandpit.NetworkStats     `json:"traffic,omitempty"`
	// Authority is the certificate that the sandbox has to trust, as PEM.
	Authority []byte `json:"authority,omitempty"`
}

// replyError carries an error across the socket.
type replyError struct {
	Code sandpit.Code `json:"code"`
	Text string       `json:"text"`
	Hint string       `json:"hint,omitempty"`
}

func newReplyError(err error) *replyError {
	if err == nil {
		return nil
	}
	return &replyError{Code: sandpit.CodeOf(err), Text: err.Error(), Hint: sandpit.HintOf(err)}
}

func (e *replyError) toError() error {
	if e == nil {
		return nil
	}
	return &sandpit.Error{Code: e.Code, Hint: e.Hint, Err: errors.New(e.Text)}
}

// writePacket sends v and the files, which still belong to the caller.
func writePacket(conn *net.UnixConn, v any, files ...*os.File) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > maxPacket || len(files) > maxFiles {
		return sandpit.Errorf(sandpit.Invalid, "request of %d bytes and %d files is too large: at most %d and %d",
			len(data), len(files), maxPacket, maxFiles)
	}
	if len(files) == 0 {
		_, err = conn.Write(data) // a gateway can only write
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	_, _, err = conn.WriteMsgUnix(data, unix.UnixRights(fds...), nil)
	return err
}

// readPacket receives into v and returns the files, which the caller closes, also after an error.
func readPacket(conn *net.UnixConn, v any) ([]*os.File, error) {
	data := make([]byte, maxPacket+1)
	rights := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, rn, flags, err := receivePacket(conn, data, rights)
	if err != nil {
		return nil, err
	}
	files, err := parseRights(rights[:rn])
	if err != nil {
		return files, err
	}
	if n == 0 {
		return files, io.EOF
	}
	if n > maxPacket || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return files, errors.New("packet is too large")
	}
	return files, json.Unmarshal(data[:n], v)
}

// receivePacket reads one packet. If the other side sends a packet and closes while Linux checks
// for packets and then for the end, Linux reports the end too early: a second read then returns
// the packet.
func receivePacket(conn *net.UnixConn, data, rights []byte) (n, rn, flags int, err error) {
	for range 2 {
		n, rn, flags, _, err = conn.ReadMsgUnix(data, rights)
		if rn > 0 && errors.Is(err, io.EOF) {
			err = nil // a packet with files alone, which belong to the caller
		}
		if !errors.Is(err, io.EOF) {
			break
		}
	}
	return n, rn, flags, err
}

func parseRights(b []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// closeAll closes files of which the descriptors do not matter any more.
func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // descriptors only: nothing was written through them
	}
}

// callEngine makes one request to the engine with a directory. A file of the reply, if there is
// one, belongs to the caller.
func callEngine(ctx context.Context, dir string, req request, files ...*os.File) (reply, *os.File, error) {
	rep, f, err := callSocket(ctx, dir, controlName, req, files...)
	if rep.Error == nil && sandpit.CodeOf(err) == sandpit.Gone { // no reply
		err = brokenError(ctx, dir, err)
	}
	return rep, f, err
}

// callSocket is callEngine for any socket that serveConn serves.
func callSocket(ctx context.Context, dir, name string, req request, files ...*os.File) (reply, *os.File, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, nil, err // an engine could reply before it sees the cancellation
	}
	conn, err := dialSocket(ctx, dir, name)
	if err != nil {
		return reply{}, nil, fmt.Errorf("reach the engine: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the read below
	defer stop()

	if err := writePacket(conn, req, files...); err != nil {
		return reply{}, nil, callError(ctx, "send to the engine", err)
	}
	var rep reply
	got, err := readPacket(conn, &rep)
	if err == nil {
		err = rep.Error.toError()
	} else {
		err = callError(ctx, "receive from the engine", err)
	}
	if err != nil || len(got) != 1 {
		closeAll(got)
		return rep, nil, err
	}
	return rep, got[0], nil
}

// callError returns the caller's own cancellation, or Gone for an engine that has ended.
func callError(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if sandpit.CodeOf(err) == sandpit.Invalid {
		return err
	}
	return sandpit.Errorf(sandpit.Gone, "%s: %w", doing, err)
}

// dialControl connects to the control socket in dir.
func dialControl(ctx context.Context, dir string) (*net.UnixConn, error) {
	return dialSocket(ctx, dir, controlName)
}

// dialSocket connects to a socket in a directory. A socket without a listener is Gone; while the
// queue of connections is full, it waits. The path goes through a descriptor because socket
// addresses end at 107 bytes.
func dialSocket(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Gone, "%w", err)
	}
	defer d.Close()
	addr := &net.UnixAddr{Net: "unixpacket", Name: descriptorPath(d, name)}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		conn, err := net.DialUnix("unixpacket", nil, addr)
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, sandpit.Errorf(sandpit.Gone, "%w", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// descriptorPath returns the path of an entry of an open directory, or of the open file itself if
// name is empty.
func descriptorPath(f *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())), name)
}

// serveConn serves one connection.
func serveConn(conn *net.UnixConn, handle func(context.Context, request, []*os.File) (reply, *os.File, error)) {
	defer conn.Close()
	var req request
	files, err := readPacket(conn, &req)
	defer func() { closeAll(files) }()
	if err != nil {
		return // not a client
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer cancel()
		_, _ = conn.Read(make([]byte, 1)) // returns when either side closes
	}()

	rep, file, err := handle(ctx, req, files)
	rep.Error = newReplyError(err)
	if file != nil {
		defer file.Close()
		_ = writePacket(conn, rep, file) // fails if the client has gone
	} else {
		_ = writePacket(conn, rep)
	}
	_ = conn.Close()
	<-gone
}
