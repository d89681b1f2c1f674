package data

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

const (
	// maxFrame is how large a frame of a client's may be, in bytes, and maxControl one that is
	// no keys. Keys are passed on in parts of keysPart.
	maxFrame   = 1 << 20
	maxControl = 4 << 10
	keysPart   = 16 << 10
	// maxCommand is how long the command of a terminal may be, in bytes.
	maxCommand = 64 << 10
	// sendTimeout is how long a frame or an event may take to be sent.
	sendTimeout = 60 * time.Second
	// maxMissedBeats is how many heartbeats a client may take to answer that it lives. While
	// its program reads no keys it cannot.
	maxMissedBeats = 4
	// endTimeout is how long a program that nobody sees any more may take to be killed, and
	// the last frame to be sent.
	endTimeout = 10 * time.Second

	defaultCols, defaultRows = 80, 24
)

// program is what a person sees in a terminal.
type program interface {
	Resize(ctx context.Context, size sandpit.TerminalSize) error
	Wait(ctx context.Context) (sandpit.ExitStatus, error)
}

// checkUpgrade checks that a request is for a WebSocket, before anything is started for
// it.
func (c *call) checkUpgrade() error {
	if c.r.ProtoMajor != 1 || !strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "a terminal is a WebSocket"), "connect by HTTP/1.1 with a WebSocket client")
	}
	origin := c.r.Header.Get("Origin")
	if origin == "" {
		return nil // not a browser
	}
	// The page must be this server's own: the name is one that the edge lets in.
	if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, c.r.Host) {
		return sandpit.Errorf(sandpit.PermissionDenied, "terminals are not for pages of %.200q", origin)
	}
	return nil
}

// parseSize reads the size of a terminal.
func parseSize(values url.Values) (sandpit.TerminalSize, error) {
	read := func(name string, usual uint16) (uint16, error) {
		text := values.Get(name)
		if text == "" {
			return usual, nil
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return 0, sandpit.Errorf(sandpit.Invalid, "query: %s %.20q: want 1 to 65535", name, text)
		}
		return uint16(n), nil
	}
	cols, colsErr := read("cols", defaultCols)
	rows, rowsErr := read("rows", defaultRows)
	return sandpit.TerminalSize{Cols: cols, Rows: rows}, cmp.Or(colsErr, rowsErr)
}

// openTerminal shows a program of its own. It is killed when the client goes away.
func (s *Server) openTerminal(ctx context.Context, c *call) error {
	values, err := c.parseQuery("cols", "rows", "command", "user", "dir")
	if err != nil {
		return err
	}
	window, err := parseSize(values)
	if err != nil {
		return err
	}
	if err := c.checkUpgrade(); err != nil {
		return err
	}
	text := cmp.Or(values.Get("command"), "if command -v bash >/dev/null; then exec bash -i; fi; exec sh -i")
	if len(text) > maxCommand {
		return sandpit.Errorf(sandpit.Invalid, "query: a command of %d bytes, want at most %d", len(text), maxCommand)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inputReader, input := io.Pipe()
	defer input.Close()
	output, outputWriter := io.Pipe()
	defer output.Close()
	process, err := c.guest.Start(ctx, sandpit.Command{
		Args: []string{"/bin/sh", "-c", text}, Env: map[string]string{"TERM": "xterm-256color"},
		User: values.Get("user"), Dir: values.Get("dir"), Terminal: &window, Stdin: inputReader, Stdout: outputWriter,
	})
	if err != nil {
		return err
	}
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		_ = process.Signal(late, sandpit.SIGKILL) // it has ended, or its sandbox has
	}()
	show := func(ctx context.Context, w io.Writer) error {
		stop := context.AfterFunc(ctx, func() { _ = output.CloseWithError(ctx.Err()) })
		defer stop()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = process.Wait(ctx) // the end is told by whoever asks for it
			_ = outputWriter.Close()
		}()
		_, err := io.Copy(w, output)
		_ = output.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		<-ended
		return err
	}
	return s.connectTerminal(ctx, c, terminalEnds{program: process, output: show, input: newInput(input)})
}

// attachSession shows a terminal beside the shell of a session: a new one, which is killed
// when the client goes away, or one of the session's jobs, which goes on.
func (s *Server) attachSession(ctx context.Context, c *call) error {
	values, err := c.parseQuery("cols", "rows", "job")
	if err != nil {
		return err
	}
	window, err := parseSize(values)
	if err != nil {
		return err
	}
	if err := c.checkUpgrade(); err != nil {
		return err
	}
	session, err := s.findSession(c)
	if err != nil {
		return err
	}
	job, err := s.findAttachable(ctx, session, values.Get("job"), window)
	if err != nil {
		return err
	}
	if values.Get("job") == "" {
		defer func() {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
			defer cancel()
			_ = job.Kill(late) // it has ended, or its sandbox has
		}()
	}
	return s.connectTerminal(ctx, c, terminalEnds{
		program: job,
		output:  func(ctx context.Context, w io.Writer) error { return job.Follow(ctx, 0, w) },
		input:   job.Write,
	})
}

// findAttachable returns the job of a session that a person is to see.
func (s *Server) findAttachable(ctx context.Context, session *shell.Session, id string, window sandpit.TerminalSize) (*shell.Job, error) {
	if id == "" {
		return session.Attach(ctx, window)
	}
	job, err := session.Job(id)
	if err == nil && !job.Info().Terminal {
		err = sandpit.Errorf(sandpit.Conflict, "job %s has no terminal", job.ID())
	}
	return job, err
}

// newInput gives up when ctx ends: the program may have stopped reading.
func newInput(w *io.PipeWriter) func(context.Context, []byte) error {
	return func(ctx context.Context, b []byte) error {
		stop := context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
		defer stop()
		_, err := w.Write(b)
		return err
	}
}

// terminalEnds are a program and its terminal.
type terminalEnds struct {
	program program
	// output copies what the terminal shows until the program has ended, or ctx.
	output func(ctx context.Context, w io.Writer) error
	// input gives it keys.
	input func(ctx context.Context, b []byte) error
}

// connectTerminal connects a terminal to a WebSocket until either end has gone.
func (s *Server) connectTerminal(ctx context.Context, c *call, t terminalEnds) error {
	c.w.begun = true // whatever goes wrong from here on is told by the library
	conn, err := websocket.Accept(c.w.ResponseWriter, c.r, nil)
	if err != nil {
		return nil // it has been told
	}
	defer func() { _ = conn.CloseNow() }() // it may be closed
	conn.SetReadLimit(maxFrame)
	// To give up a Read or a Ping ends the connection, on which the end is still to be told.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer cancel() // nobody looks any more
		s.readKeys(ctx, reading, conn, t)
	}()
	alive := make(chan struct{})
	go func() {
		defer close(alive)
		s.pingClient(ctx, reading, conn, cancel)
	}()
	defer func() { <-gone; <-alive }()
	defer stopReading()
	defer cancel()
	showErr := t.output(ctx, frameWriter{ctx, conn})
	if ctx.Err() != nil && c.sandbox.Context().Err() == nil {
		return nil // the client has gone
	}
	return s.sendEnd(ctx, c, conn, t, showErr)
}

// sendEnd sends the last frame.
func (s *Server) sendEnd(ctx context.Context, c *call, conn *websocket.Conn, t terminalEnds, showErr error) error {
	status, err := t.program.Wait(ctx)
	err = cmp.Or(err, showErr)
	if held := c.sandbox.Context(); held.Err() != nil {
		err = context.Cause(held)
	}
	var end wire.TerminalExit
	if err == nil {
		end.ExitCode = &status.Code
	} else {
		problem := api.ProblemOf(c.r.Context(), err)
		end.Problem = &problem
	}
	text, err := json.Marshal(end)
	if err != nil {
		return err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if conn.Write(late, websocket.MessageText, text) == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // it may have gone meanwhile
	}
	return nil
}

// readKeys takes frames until the client goes away. One that makes no sense ends the
// connection.
func (s *Server) readKeys(ctx, reading context.Context, conn *websocket.Conn, t terminalEnds) {
	for {
		kind, frame, err := conn.Reader(reading)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if err := typeFrame(ctx, frame, t.input); err != nil {
				if sandpit.CodeOf(err) != sandpit.Canceled {
					<-ctx.Done() // the program reads no more; what it shows still comes
				}
				return
			}
			continue
		}
		text, err := io.ReadAll(io.LimitReader(frame, maxControl+1))
		if err != nil {
			return
		}
		if err := handleControl(ctx, text, t.program); err != nil {
			_ = conn.Close(websocket.StatusPolicyViolation, "want {\"resize\":{\"cols\":80,\"rows\":24}}") // it may have gone
			return
		}
	}
}

// typeFrame gives a program the keys in a frame. Canceled: the client has gone.
func typeFrame(ctx context.Context, frame io.Reader, typed func(context.Context, []byte) error) error {
	buffer := make([]byte, keysPart)
	for {
		n, err := frame.Read(buffer)
		if n > 0 {
			if err := typed(ctx, buffer[:n]); err != nil {
				return sandpit.Errorf(sandpit.Gone, "type: %w", err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return sandpit.Errorf(sandpit.Canceled, "read keys: %w", err)
		}
	}
}

var errControl = errors.New("not a control frame")

// handleControl does what a text frame says.
func handleControl(ctx context.Context, frame []byte, p program) error {
	var c wire.Control
	if err := json.Unmarshal(frame, &c); err != nil || c.Resize == nil || c.Resize.Cols == 0 || c.Resize.Rows == 0 {
		return errControl
	}
	// A program that has just ended has no size; that it has ended comes by itself.
	_ = p.Resize(ctx, sandpit.TerminalSize(*c.Resize))
	return nil
}

// pingClient gives up on a client that answers no more.
func (s *Server) pingClient(ctx, reading context.Context, conn *websocket.Conn, giveUp func()) {
	ticker := time.NewTicker(s.o.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		answered, cancel := context.WithTimeout(reading, maxMissedBeats*s.o.Heartbeat)
		err := conn.Ping(answered)
		cancel()
		if err != nil {
			giveUp()
			return
		}
	}
}

// frameWriter sends what is written to it as binary frames.
type frameWriter struct {
	ctx  context.Context //nolint:containedctx // of the connection
	conn *websocket.Conn
}

// Write implements io.Writer. What is being sent when the program's sandbox ends has a
// while to go on: to give it up would end the connection.
func (s frameWriter) Write(b []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), sendTimeout)
	defer cancel()
	stop := context.AfterFunc(s.ctx, func() { time.AfterFunc(endTimeout, cancel) })
	defer stop()
	if err := s.conn.Write(ctx, websocket.MessageBinary, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
