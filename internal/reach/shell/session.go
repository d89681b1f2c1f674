package shell

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	defaultTimeout   = 60 * time.Second
	defaultGrace     = 2 * time.Second
	defaultMaxOutput = 1 << 20
	defaultMaxJobs   = 32
	maxOutputLimit   = 64 << 20
	maxCommand       = 1 << 20
	maxStdin         = 16 << 20
	// maxLate bounds Result.Late, in bytes.
	maxLate = 64 << 10
	// sessionCost is the memory of a session without its jobs, in bytes.
	sessionCost = 2 * maxLate
	// cleanWithin bounds the removal of a temporary file in the sandbox.
	cleanWithin = 10 * time.Second
)

// Options are the options of a session. The zero value of a field means the default stated
// with it.
type Options struct {
	// Dir is where the shell starts; it is created if it is missing. Default: the sandbox's
	// working directory.
	Dir string `json:"dir,omitempty"`
	// Env is added to the sandbox's environment.
	Env map[string]string `json:"env,omitempty"`
	// User as in sandpit.Command. Default: the sandbox's.
	User string `json:"user,omitempty"`
	// Shell is "bash" or "sh". Default: bash if the sandbox has it, else sh.
	Shell string `json:"shell,omitempty"`
	// Timeout is for commands without a timeout of their own. Default: 60 seconds.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Grace is how long an interrupted command may take to end before it is killed. Default:
	// 2 seconds.
	Grace time.Duration `json:"grace,omitempty"`
	// MaxOutput bounds, in bytes, the kept part of each output of a command, unless its
	// request has a bound, and of each job. Default: 1 MiB; at most 64 MiB.
	MaxOutput int `json:"max_output,omitempty"`
	// RefuseBusy refuses a command with Conflict while another one runs. Default: commands
	// wait for each other, in order of arrival.
	RefuseBusy bool `json:"refuse_busy,omitempty"`
	// MaxJobs bounds the kept jobs, ended ones included. Default: 32.
	MaxJobs int `json:"max_jobs,omitempty"`
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Timeout < 0 || o.Grace < 0 || o.MaxJobs < 0:
		return o, sandpit.Errorf(sandpit.Invalid, "session: negative limit")
	case o.MaxOutput < 0 || o.MaxOutput > maxOutputLimit:
		return o, sandpit.Errorf(sandpit.Invalid, "session: output of %d bytes: want up to %d", o.MaxOutput, maxOutputLimit)
	case o.Shell != "" && o.Shell != "bash" && o.Shell != "sh":
		return o, sandpit.Errorf(sandpit.Invalid, "session: shell %q: want bash or sh", o.Shell)
	case o.Dir != "" && !path.IsAbs(o.Dir):
		return o, sandpit.Errorf(sandpit.Invalid, "session: directory %q: want an absolute path", o.Dir)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = defaultMaxOutput
	}
	if o.MaxJobs == 0 {
		o.MaxJobs = defaultMaxJobs
	}
	o.Env = maps.Clone(o.Env)
	return o, nil
}

// RunRequest is a command for the shell of a session.
type RunRequest struct {
	// Command is a piece of a shell script of up to 1 MiB; it may have many lines.
	Command string `json:"command"`
	// Timeout is how long the command may take. Default: the session's.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Stdin is the command's input, up to 16 MiB. Default: empty.
	Stdin []byte `json:"stdin,omitempty"`
	// SeparateStderr returns the standard error in Stderr. Default: both outputs are in
	// Stdout, in the order of the writes.
	SeparateStderr bool `json:"separate_stderr,omitempty"`
	// MaxOutput bounds the kept part of each output, in bytes. Default: the session's; at
	// most 64 MiB.
	MaxOutput int `json:"max_output,omitempty"`
	// Input is the command's input while it runs, instead of Stdin. Default: none.
	Input *Input `json:"-"`
	// Started is called when the shell has been given the command. Default: none.
	Started func() `json:"-"`
	// Output is called with the bytes of both streams when they arrive; stderr is true for
	// those of the standard error if SeparateStderr is set. It must return at once, and not
	// keep the bytes. Default: none.
	Output func(stderr bool, p []byte) `json:"-"`
}

func (r RunRequest) validateRequest() error {
	switch {
	case len(r.Command) > maxCommand:
		return sandpit.Errorf(sandpit.Invalid, "the command has %d bytes, at most %d are allowed", len(r.Command), maxCommand)
	case strings.ContainsRune(r.Command, 0):
		return sandpit.Errorf(sandpit.Invalid, "the command has a NUL byte")
	case len(r.Stdin) > maxStdin:
		return sandpit.Errorf(sandpit.Invalid, "the input has %d bytes, at most %d are allowed", len(r.Stdin), maxStdin)
	case len(r.Stdin) > 0 && r.Input != nil:
		return sandpit.Errorf(sandpit.Invalid, "the command has two inputs")
	case r.Timeout < 0:
		return sandpit.Errorf(sandpit.Invalid, "timeout %s: want more than 0", r.Timeout)
	case r.MaxOutput < 0 || r.MaxOutput > maxOutputLimit:
		return sandpit.Errorf(sandpit.Invalid, "output of %d bytes: want up to %d", r.MaxOutput, maxOutputLimit)
	}
	return nil
}

// Result is the result of a command.
type Result struct {
	// Stdout and Stderr are the unchanged bytes that the command and its children wrote while
	// it ran. Of an output longer than MaxOutput the middle is replaced by a line that reports
	// the omission.
	Stdout []byte `json:"stdout"`
	Stderr []byte `json:"stderr"`
	// StdoutSize and StderrSize are how many bytes were written, omitted ones included.
	StdoutSize int64 `json:"stdout_size"`
	StderrSize int64 `json:"stderr_size"`
	// Truncated is true if output was omitted.
	Truncated bool `json:"truncated,omitempty"`
	// Late is the output of background children of earlier commands while no command ran,
	// both streams together, up to 64 KiB.
	Late []byte `json:"late,omitempty"`
	// ExitCode is the command's exit code, or 128 plus the number of the signal that ended
	// it.
	ExitCode int `json:"exit_code"`
	// Duration is measured with this machine's clock.
	Duration time.Duration `json:"duration"`
	// TimedOut is true if the command was stopped because it took too long.
	TimedOut bool `json:"timed_out,omitempty"`
	// Outcome is how the command ended, and whether the shell keeps running.
	Outcome Outcome `json:"outcome"`
	// StateLost is true if the shell has ended: the next command gets a new one.
	StateLost bool `json:"state_lost,omitempty"`
	// Fresh is true if the command got a new shell because the earlier one has ended.
	Fresh bool `json:"fresh,omitempty"`
	// Cwd is the working directory after the command; "" if it is unknown.
	Cwd string `json:"cwd,omitempty"`
}

// Session is a shell in a sandbox. All methods may be called concurrently.
type Session struct {
	id      string
	guest   sandpit.Guest
	o       Options
	created time.Time
	lock    chan struct{} // held by the caller that uses the shell
	closing chan struct{} // closed when Close begins
	onGone  func(error)   // called when the sandbox has ended; may be nil
	memory  *memory.Account

	confined atomic.Bool // whether file calls cannot create temporary files

	// Guarded by lock.
	shell   *shellProcess
	dialect *dialect // set by the first start of a shell
	status  int
	pending pendingReport

	jobs jobs

	mu       sync.Mutex
	name     string // of the shell
	cwd      string
	runs     int
	waiting  int // number of running and waiting commands
	lastUsed time.Time
	reason   error // why the session is closed
}

// pendingReport is the information for the result of the next command.
type pendingReport struct {
	late  []byte
	fresh bool
}

// Open starts a session. The shell is bash, or sh if the sandbox has no bash. The caller must
// Close the session.
//
// Invalid: the options can never work. NotFound: the sandbox has no shell. Also the errors of
// sandpit.Processes.Start.
func Open(ctx context.Context, g sandpit.Guest, o Options) (*Session, error) {
	return openSession(ctx, g, newID(), o, sessionHooks{})
}

func newID() string {
	return "shell-" + newToken()[:16]
}

// sessionHooks are the callback and the account that Sessions passes to a session.
type sessionHooks struct {
	// onGone is called when the session ended because the sandbox did. Default: none.
	onGone func(error)
	// memory is the account of the session, and is closed with it. Default: no limit.
	memory *memory.Account
}

// openSession is Open with an ID. It closes the account after an error too.
func openSession(ctx context.Context, g sandpit.Guest, id string, o Options, hooks sessionHooks) (*Session, error) {
	o, err := o.withDefaults()
	if err != nil {
		hooks.memory.Close()
		return nil, err
	}
	now := time.Now()
	s := &Session{
		id: id, guest: g, o: o, created: now, lastUsed: now, onGone: hooks.onGone, memory: hooks.memory,
		lock: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	s.jobs.max = o.MaxJobs
	err = s.memory.Reserve(sessionCost)
	if err == nil {
		err = s.startShell(ctx)
	}
	if err != nil {
		s.memory.Close()
		return nil, err
	}
	return s, nil
}

// ID returns the name of the session.
func (s *Session) ID() string { return s.id }

// Info describes a session.
type Info struct {
	ID        string    `json:"id"`
	Shell     string    `json:"shell"` // "bash" or "sh"
	Cwd       string    `json:"cwd,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	LastUsed  time.Time `json:"last_used"`
	// Runs is the number of commands that have run.
	Runs int `json:"runs"`
	// Waiting is the number of commands that run or wait.
	Waiting int `json:"waiting"`
	// Jobs is the number of running jobs.
	Jobs   int  `json:"jobs"`
	Closed bool `json:"closed,omitempty"`
	// Reason is why the session is closed.
	Reason string `json:"reason,omitempty"`
}

// Info describes the session, also after its end.
func (s *Session) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := Info{
		ID: s.id, Shell: s.name, Cwd: s.cwd, CreatedAt: s.created, LastUsed: s.lastUsed,
		Runs: s.runs, Waiting: s.waiting, Jobs: s.jobs.countRunning(), Closed: s.reason != nil,
	}
	if s.reason != nil {
		info.Reason = s.reason.Error()
	}
	return info
}

// startShell starts a shell. The caller must hold lock.
func (s *Session) startShell(ctx context.Context) error {
	var choice []dialect
	for _, d := range []dialect{bashDialect(), posixDialect()} {
		known := s.dialect == nil || s.dialect.name == d.name
		if known && (s.o.Shell == "" || s.o.Shell == d.name) {
			choice = append(choice, d)
		}
	}
	cmd := sandpit.Command{Dir: s.o.Dir, User: s.o.User, Env: s.startEnv()}
	var err error
	for _, d := range choice {
		s.shell, err = startProcess(ctx, s.guest, d, cmd, s.sandboxGone)
		if sandpit.CodeOf(err) == sandpit.Invalid && s.o.Dir != "" && s.makeDir(ctx) == nil {
			s.shell, err = startProcess(ctx, s.guest, d, cmd, s.sandboxGone)
		}
		if err == nil {
			s.dialect, s.status = &d, 0
			s.mu.Lock()
			defer s.mu.Unlock()
			s.name, s.cwd = d.name, s.shell.dir
			return nil
		}
		if sandpit.CodeOf(err) != sandpit.NotFound {
			break
		}
	}
	s.shell = nil
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = sandpit.WithHint(err, "a session needs a shell in the image; commands can run without one")
	}
	return s.noteGone(err)
}

// makeDir creates the directory of the session if it is missing.
func (s *Session) makeDir(ctx context.Context) error {
	err := s.guest.MakeDir(ctx, s.o.User, s.o.Dir)
	if errors.Is(err, sandpit.AlreadyExists) || errors.Is(err, sandpit.PermissionDenied) {
		return nil // file calls may be confined, but shells are not: they use the directory if it exists
	}
	return err
}

// startEnv returns the environment of a new shell. PWD keeps the caller's name of a directory
// that is reached through a link.
func (s *Session) startEnv() map[string]string {
	env := map[string]string{"TERM": "dumb"}
	if s.o.Dir != "" {
		env["PWD"] = s.o.Dir
	}
	maps.Copy(env, s.o.Env)
	return env
}

func (s *Session) sandboxGone(err error) { _ = s.noteGone(err) }

// noteGone returns err. It calls onGone if err means that the sandbox has ended, and not only
// this session.
func (s *Session) noteGone(err error) error {
	if sandpit.CodeOf(err) == sandpit.Gone && s.onGone != nil && s.closedError() == nil {
		s.onGone(err)
	}
	return err
}

// lockShell locks the shell, and waits for other commands unless RefuseBusy is set. The
// caller must call release.
func (s *Session) lockShell(ctx context.Context) (release func(), err error) {
	if s.o.RefuseBusy {
		select {
		case s.lock <- struct{}{}:
			return func() { <-s.lock }, nil
		default:
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "the session is busy with another command"),
				"wait for it, or use another session")
		}
	}
	select {
	case s.lock <- struct{}{}:
		return func() { <-s.lock }, nil
	case <-s.closing:
		return nil, s.closedError()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// closedError returns why the session is closed, or nil.
func (s *Session) closedError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// beginUse counts a caller until done is called, so that a session in use is not idle.
func (s *Session) beginUse() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting--
		s.lastUsed = time.Now()
	}
}

// putFile writes content to a new file that only the session's user may read. A program writes it
// if file calls are confined to other directories.
func (s *Session) putFile(ctx context.Context, content []byte) (name string, err error) {
	name = "/tmp/.sandpit-" + newToken()
	err = s.guest.WriteFile(ctx, s.o.User, name, bytes.NewReader(content), sandpit.WriteOptions{Mode: 0o600})
	if sandpit.CodeOf(err) == sandpit.PermissionDenied {
		s.confined.Store(true)
		_, err = runScript(ctx, s.guest, script{
			user: s.o.User, text: `umask 077 && cat > "$1"`, args: []string{name}, input: bytes.NewReader(content),
		})
	}
	return name, err
}

func (s *Session) removeFile(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWithin)
	defer cancel()
	// A leftover file does no harm, and other calls report failures of the sandbox.
	if s.confined.Load() {
		_, _ = runScript(ctx, s.guest, script{user: s.o.User, text: `rm -f "$1"`, args: []string{name}})
		return
	}
	_ = s.guest.Remove(ctx, s.o.User, name)
}
