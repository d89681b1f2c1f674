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

// The control protocol: a client connects to the engine's socket, sends one
// packet with a request and the descriptors that belong to it, and receives
// one packet with the reply. Closing the connection gives the call up.

const (
	// maxPacket bounds a request or reply. The kernel's default socket buffer
	// takes a little more than 200 KiB.
	maxPacket = 128 << 10
	// maxFiles bounds the descriptors of one packet; the kernel's own limit is
	// 253.
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
	opDestroy operation = "destroy"

	opSave     operation = "save"     // write the layer to the files that come along, and hold still
	opLayer    operation = "layer"    // write the layer to the files that come along, and go on
	opHeld     operation = "held"     // return one of the files that the sandbox was made with
	opState    operation = "state"    // write the kernel to the files that come along
	opUnsave   operation = "unsave"   // go on as before, after opState has held it still
	opIdentify operation = "identify" // replace the identity by the file that comes along

	// These a gateway answers, on a socket of its own.
	opPolicy    operation = "policy"
	opDecisions operation = "decisions"
	opRecall    operation = "recall" // decisions of the gateway before
	opSecrets   operation = "secrets"
	opTraffic   operation = "traffic"
	opExplain   operation = "explain"
	opAuthority operation = "authority"

	// This the reaper answers: what the dialer may open for a gateway besides public addresses.
	opGrant operation = "grant"
)

type request struct {
	Op     operation      `json:"op"`
	ID     sandpit.ID     `json:"id"`
	Port   int            `json:"port,omitempty"`
	Create *createRequest `json:"create,omitempty"`
	// Save is what opState is to do.
	Save *saveRequest `json:"save,omitempty"`
	// Held is the file that opHeld is about.
	Held heldFile `json:"held,omitempty"`
	// GoOn has the sandbox go on after opSave.
	GoOn bool `json:"go_on,omitempty"`
	// Stopped says that the sandbox does not end with opDestroy, but is stopped.
	Stopped bool `json:"stopped,omitempty"`

	Policy  *sandpit.NetworkPolicy `json:"policy,omitempty"`
	After   int64                  `json:"after,omitempty"`
	Secrets map[string]string      `json:"secrets,omitempty"`
	Target  string                 `json:"target,omitempty"`
	// Decisions are what opRecall brings back.
	Decisions []sandpit.NetworkDecision `json:"decisions,omitempty"`
	// Grant is that of opGrant; Fresh says that the gateway is still to be started.
	Grant *dialer.Grant `json:"grant,omitempty"`
	Fresh bool          `json:"fresh,omitempty"`
}

type reply struct {
	Error *replyError   `json:"error,omitempty"`
	Exit  *sandpit.Exit `json:"exit,omitempty"`
	// Stopped says that the sandbox is no longer here, but has not ended.
	Stopped bool `json:"stopped,omitempty"`
	// Notes are limits that are not enforced, for people.
	Notes []string       `json:"notes,omitempty"`
	Stats *sandpit.Stats `json:"stats,omitempty"`
	// Paused says that the guest cannot be asked for what Stats lacks.
	Paused bool `json:"paused,omitempty"`

	Decisions []sandpit.NetworkDecision `json:"decisions,omitempty"`
	Traffic   *sandpit.NetworkStats     `json:"traffic,omitempty"`
	// Authority is the certificate that the sandbox is to trust, as PEM.
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

// writePacket sends v and the files, which stay the caller's.
func writePacket(conn *net.UnixConn, v any, files ...*os.File) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > maxPacket || len(files) > maxFiles {
		return sandpit.Errorf(sandpit.Invalid, "description of %d bytes and %d files is too large: at most %d and %d",
			len(data), len(files), maxPacket, maxFiles)
	}
	if len(files) == 0 {
		_, err = conn.Write(data) // the only way that a gateway has
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	_, _, err = conn.WriteMsgUnix(data, unix.UnixRights(fds...), nil)
	return err
}

// readPacket receives into v and returns the files, which are the caller's to
// close, also when there is an error.
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

// receivePacket reads one packet. Linux tells the end of a socket of packets too soon if the other
// side sends one and closes between its look at the packets and its look at the end:
// another read then has it.
func receivePacket(conn *net.UnixConn, data, rights []byte) (n, rn, flags int, err error) {
	for range 2 {
		n, rn, flags, _, err = conn.ReadMsgUnix(data, rights)
		if rn > 0 && errors.Is(err, io.EOF) {
			err = nil // a packet of files alone, which are the caller's
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

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // descriptors only: nothing was written through them
	}
}

// callEngine makes one request to the engine whose directory is dir. A reply's file,
// if there is one, is the caller's.
func callEngine(ctx context.Context, dir string, req request, files ...*os.File) (reply, *os.File, error) {
	rep, f, err := callSocket(ctx, dir, controlName, req, files...)
	if rep.Error == nil && sandpit.CodeOf(err) == sandpit.Gone { // it did not answer
		err = brokenError(ctx, dir, err)
	}
	return rep, f, err
}

// callSocket is call for any socket that serveConn answers.
func callSocket(ctx context.Context, dir, name string, req request, files ...*os.File) (reply, *os.File, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, nil, err // an engine could answer before it sees that nobody waits
	}
	conn, err := dialSocket(ctx, dir, name)
	if err != nil {
		return reply{}, nil, fmt.Errorf("reach the engine: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // wakes the read below
	defer stop()

	if err := writePacket(conn, req, files...); err != nil {
		return reply{}, nil, callError(ctx, "ask the engine", err)
	}
	var rep reply
	got, err := readPacket(conn, &rep)
	if err == nil {
		err = rep.Error.toError()
	} else {
		err = callError(ctx, "hear from the engine", err)
	}
	if err != nil || len(got) != 1 {
		closeAll(got)
		return rep, nil, err
	}
	return rep, got[0], nil
}

// callError tells a caller's own cancellation from an engine that went away.
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

// dialSocket connects to the named socket in dir. A socket that nobody
// serves is Gone; while too many others are waiting, it waits too. The path goes through a descriptor because socket addresses
// end at 107 bytes.
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

// descriptorPath names an entry of an open directory, or the open file itself
// when name is empty.
func descriptorPath(f *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())), name)
}

// serveConn answers one connection.
func serveConn(conn *net.UnixConn, handle func(context.Context, request, []*os.File) (reply, *os.File, error)) {
	defer conn.Close()
	var req request
	files, err := readPacket(conn, &req)
	defer func() { closeAll(files) }()
	if err != nil {
		return // not a client of ours: there is nobody to tell
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer cancel()
		_, _ = conn.Read(make([]byte, 1)) // returns when the client hangs up or we do
	}()

	rep, file, err := handle(ctx, req, files)
	rep.Error = newReplyError(err)
	if file != nil {
		defer file.Close()
		_ = writePacket(conn, rep, file) // a client that went away takes nothing
	} else {
		_ = writePacket(conn, rep)
	}
	_ = conn.Close()
	<-gone
}
