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
	// maxFrame is the maximum number of bytes of a client's frame, and maxControl that of a
	// control frame. Keys are passed on in pieces of keysPart.
	maxFrame   = 1 << 20
	maxControl = 4 << 10
	keysPart   = 16 << 10
	// maxCommand is the maximum number of bytes of a terminal's command.
	maxCommand = 64 << 10
	// sendTimeout is how long sending a frame or an event may take.
	sendTimeout = 60 * time.Second
	// maxMissedBeats is the number of heartbeats in which a client must respond to a ping. It
	// cannot while its program does not read keys.
	maxMissedBeats = 4
	// endTimeout is how long it may take to kill the program after the client has disconnected,
	// and to send the last frame.
	endTimeout = 10 * time.Second

	defaultCols, defaultRows = 80, 24
)

// program is a program in a terminal.
type program interface {
	Resize(ctx context.Context, size sandpit.TerminalSize) error
	Wait(ctx context.Context) (sandpit.ExitStatus, error)
}

// checkUpgrade checks that a request is for a WebSocket, before anything is started.
func (c *call) checkUpgrade() error {
	if c.r.ProtoMajor != 1 || !strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "a terminal needs a WebSocket"), "connect by HTTP/1.1 with a WebSocket client")
	}
	origin := c.r.Header.Get("Origin")
	if origin == "" {
		return nil // not a browser
	}
	// The page must be of this server: the edge has checked the host name.
	if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, c.r.Host) {
		return sandpit.Errorf(sandpit.PermissionDenied, "pages of %.200q may not open terminals", origin)
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

// openTerminal runs a program in a new terminal. It is killed when the client disconnects.
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
		_ = process.Signal(late, sandpit.SIGKILL) // fails only if it or its sandbox has ended
	}()
	show := func(ctx context.Context, w io.Writer) error {
		stop := context.AfterFunc(ctx, func() { _ = output.CloseWithError(ctx.Err()) })
		defer stop()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = process.Wait(ctx) // sendEnd reports the result
			_ = outputWriter.Close()
		}()
		_, err := io.Copy(w, output)
		_ = output.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		<-ended
		return err
	}
	return s.connectTerminal(ctx, c, terminalEnds{program: process, output: show, input: newInput(input)})
}

// attachSession connects a terminal in a session: a new one, which is killed when the client
// disconnects, or that of a job, which keeps running.
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
			_ = job.Kill(late) // fails only if it or its sandbox has ended
		}()
	}
	return s.connectTerminal(ctx, c, terminalEnds{
		program: job,
		output:  func(ctx context.Context, w io.Writer) error { return job.Follow(ctx, 0, w) },
		input:   job.Write,
	})
}

// findAttachable returns the job of a session to connect: a new shell, or the job with an ID.
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

// newInput returns a function that writes to w until ctx ends, because the program may have
// stopped reading.
func newInput(w *io.PipeWriter) func(context.Context, []byte) error {
	return func(ctx context.Context, b []byte) error {
		stop := context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
		defer stop()
		_, err := w.Write(b)
		return err
	}
}

// terminalEnds are a program and the two directions of its terminal.
type terminalEnds struct {
	program program
	// output copies what the terminal shows until the program has ended, or ctx.
	output func(ctx context.Context, w io.Writer) error
	// input gives it keys.
	input func(ctx context.Context, b []byte) error
}

// connectTerminal connects a terminal to a WebSocket until either side ends.
func (s *Server) connectTerminal(ctx context.Context, c *call, t terminalEnds) error {
	c.w.begun = true // the library reports errors from here on
	conn, err := websocket.Accept(c.w.ResponseWriter, c.r, nil)
	if err != nil {
		return nil // the library has responded
	}
	defer func() { _ = conn.CloseNow() }() // it may be closed
	conn.SetReadLimit(maxFrame)
	// Canceling a Read or a Ping closes the connection, on which the end must still be sent.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer cancel() // the client has disconnected
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
		return nil // the client has disconnected
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
		_ = conn.Close(websocket.StatusNormalClosure, "") // the client may have disconnected
	}
	return nil
}

// readKeys handles frames until the client disconnects. An invalid frame ends the connection.
func (s *Server) readKeys(ctx, reading context.Context, conn *websocket.Conn, t terminalEnds) {
	for {
		kind, frame, err := conn.Reader(reading)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if err := typeFrame(ctx, frame, t.input); err != nil {
				if sandpit.CodeOf(err) != sandpit.Canceled {
					<-ctx.Done() // the program does not read any more, but may still write
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
			_ = conn.Close(websocket.StatusPolicyViolation, "want {\"resize\":{\"cols\":80,\"rows\":24}}") // the client may have disconnected
			return
		}
	}
}

// typeFrame passes the keys in a frame to a program. Canceled: the client has disconnected.
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

// handleControl handles a text frame.
func handleControl(ctx context.Context, frame []byte, p program) error {
	var c wire.Control
	if err := json.Unmarshal(frame, &c); err != nil || c.Resize == nil || c.Resize.Cols == 0 || c.Resize.Rows == 0 {
		return errControl
	}
	// It fails for a program that has just ended, whose end is reported anyway.
	_ = p.Resize(ctx, sandpit.TerminalSize(*c.Resize))
	return nil
}

// pingClient disconnects a client that does not respond.
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

// Write implements io.Writer. A write that is active when the sandbox ends has some more time:
// canceling it would close the connection.
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
