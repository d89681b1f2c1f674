package shell

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

const (
	// inputLimit bounds the input that waits for a job, in bytes.
	inputLimit = 64 << 10
	// jobCost is the memory of a job without its output, in bytes.
	jobCost = inputLimit + firstRingPage
)

// maxJobCommand bounds the command of a job, in bytes. It is Linux's bound for one argument.
const maxJobCommand = 128<<10 - 1

// JobRequest describes a program to start beside the shell of a session.
type JobRequest struct {
	// Command is a shell script. It may be empty with a Terminal: then the job is an
	// interactive shell.
	Command string `json:"command,omitempty"`
	// Timeout is how long the job may run before it is killed. Default: no limit.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Stdin keeps the input open for Job.Write. Default: an empty input. A terminal always
	// has an open input.
	Stdin bool `json:"stdin,omitempty"`
	// Terminal gives the job a terminal of this size. Default: none.
	Terminal *sandpit.TerminalSize `json:"terminal,omitempty"`
	// MaxOutput bounds the kept end of the output, in bytes. Default: the session's; at most
	// 64 MiB.
	MaxOutput int `json:"max_output,omitempty"`
}

func (r JobRequest) validateRequest() error {
	switch {
	case strings.TrimSpace(r.Command) == "" && r.Terminal == nil:
		return sandpit.Errorf(sandpit.Invalid, "start a job: no command")
	case len(r.Command) > maxJobCommand:
		return sandpit.Errorf(sandpit.Invalid, "start a job: the command has %d bytes, at most %d are allowed", len(r.Command), maxJobCommand)
	case strings.ContainsRune(r.Command, 0) || !utf8.ValidString(r.Command):
		return sandpit.Errorf(sandpit.Invalid, "start a job: the command is not text")
	case r.Timeout < 0:
		return sandpit.Errorf(sandpit.Invalid, "start a job: timeout %s: want more than 0", r.Timeout)
	case r.MaxOutput < 0 || r.MaxOutput > maxOutputLimit:
		return sandpit.Errorf(sandpit.Invalid, "start a job: output of %d bytes: want up to %d", r.MaxOutput, maxOutputLimit)
	}
	return nil
}

// Job is a program beside the shell of a session. It runs until it ends, is killed, or the
// session is closed. All methods may be called concurrently.
type Job struct {
	id      string
	session *Session
	request JobRequest
	dir     string
	began   time.Time
	process sandpit.Process
	input   *inputQueue // nil without an open input
	output  *ring
	cancel  context.CancelFunc

	ended  chan struct{}
	status sandpit.ExitStatus // set before ended is closed
	err    error
	at     time.Time
}

// JobInfo describes a job.
type JobInfo struct {
	ID        string    `json:"id"`
	Command   string    `json:"command,omitempty"`
	PID       int       `json:"pid"`
	Dir       string    `json:"dir,omitempty"`
	Terminal  bool      `json:"terminal,omitempty"`
	StartedAt time.Time `json:"started_at"`
	// Output is how many bytes the job has written.
	Output  int64 `json:"output"`
	Running bool  `json:"running"`
	// The following are for a job that has ended. ExitCode is 128 plus the signal's
	// number if a signal ended it.
	EndedAt     time.Time `json:"ended_at,omitzero"`
	ExitCode    int       `json:"exit_code"`
	OutOfMemory bool      `json:"out_of_memory,omitempty"`
	// Error is why it is unknown how the job ended, or that its timeout has passed.
	Error string `json:"error,omitempty"`
}

// Start starts a job in the directory of the session, with the exported variables of its
// shell. It waits for other commands as Run does.
//
// Invalid: the request can never work. Exhausted: too many jobs run. Conflict: the session is
// busy and refuses concurrent commands. Gone: the session is closed, or the sandbox has ended.
// Also the errors of sandpit.Processes.Start.
func (s *Session) Start(ctx context.Context, r JobRequest) (*Job, error) {
	if err := r.validateRequest(); err != nil {
		return nil, err
	}
	if r.MaxOutput == 0 {
		r.MaxOutput = s.o.MaxOutput
	}
	defer s.beginUse()()
	release, err := s.lockShell(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := errors.Join(s.closedError(), ctx.Err()); err != nil {
		return nil, err
	}
	env, dir, err := s.exportedEnv(ctx)
	if err != nil {
		return nil, err
	}
	job, err := s.launchJob(ctx, r, env, dir)
	return job, s.noteGone(err)
}

// Attach starts an interactive shell for a person at a terminal of its own, in the directory
// of the session and with the exported variables of its shell. It is a job with any number of
// readers, like others.
func (s *Session) Attach(ctx context.Context, size sandpit.TerminalSize) (*Job, error) {
	return s.Start(ctx, JobRequest{Terminal: &size})
}

// exportedEnv gets the environment and the directory of the shell.
func (s *Session) exportedEnv(ctx context.Context) (env map[string]string, dir string, err error) {
	const most = 1 << 20
	r := RunRequest{Timeout: s.o.Timeout, MaxOutput: most}
	earlier := s.status
	result, err := s.runLocked(ctx, r, call{text: `\command cat /proc/self/environ`})
	s.mu.Lock()
	s.runs-- // not a command of the caller
	dir = s.cwd
	s.mu.Unlock()
	if err != nil {
		return nil, "", err
	}
	s.status = earlier
	s.pending = pendingReport{result.Late, result.Fresh}
	if result.ExitCode != 0 || result.Truncated {
		return nil, "", sandpit.Errorf(sandpit.Conflict, "cannot read the environment of the shell: %s", limitText(result.Stdout))
	}
	env = make(map[string]string)
	for entry := range strings.SplitSeq(string(result.Stdout), "\x00") {
		// Only UTF-8 can be sent; _ belongs to the shell.
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" && name != "_" && utf8.ValidString(entry) {
			env[name] = value
		}
	}
	return env, dir, nil
}

func limitText(b []byte) string {
	const most = 400
	return strings.ToValidUTF8(string(b[:min(len(b), most)]), "\uFFFD")
}

// launchJob starts a job. The caller must hold the session's lock.
func (s *Session) launchJob(ctx context.Context, r JobRequest, env map[string]string, dir string) (*Job, error) {
	if err := s.memory.Reserve(jobCost); err != nil {
		return nil, err
	}
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j := &Job{
		session: s, request: r, dir: dir, began: time.Now(), output: newRing(r.MaxOutput, s.memory),
		cancel: cancel, ended: make(chan struct{}),
	}
	cmd := sandpit.Command{
		Args: []string{s.dialect.name, "-c", r.Command}, Env: env, Dir: dir, User: s.o.User,
		Timeout: r.Timeout, Terminal: r.Terminal, Stdout: j.output, Stderr: j.output,
	}
	if r.Terminal != nil {
		env["TERM"] = "xterm-256color"
		if r.Command == "" {
			cmd.Args = s.dialect.interactive
		}
	}
	if r.Stdin || r.Terminal != nil {
		j.input = newInputQueue(inputLimit)
		cmd.Stdin = j.input
	}
	if err := s.jobs.addJob(j); err != nil {
		cancel()
		j.freeOutput()
		return nil, err
	}
	unlink := context.AfterFunc(ctx, cancel)
	process, err := s.guest.Start(following, cmd)
	if !unlink() && err == nil {
		err = errors.Join(ctx.Err(), discardProcess(ctx, process))
	}
	if err != nil {
		cancel()
		j.abandonInput()
		s.jobs.removeJob(j)
		j.freeOutput()
		return nil, err
	}
	j.process = process
	go j.followOutput(following) // ends with the process; Session.Close waits for it
	s.jobs.publishJob(j)
	return j, nil
}

// freeOutput releases the memory of a job that is no longer kept.
func (j *Job) freeOutput() {
	j.output.releaseMemory()
	j.session.memory.Return(jobCost)
}

func (j *Job) abandonInput() {
	if j.input != nil {
		j.input.abandonInput()
	}
}

func (j *Job) followOutput(ctx context.Context) {
	defer close(j.ended)
	defer j.cancel()
	j.status, j.err = j.process.Wait(ctx)
	if j.err != nil && ctx.Err() == nil {
		j.err = j.session.noteGone(findGoneCause(ctx, j.session.guest, j.err))
	}
	j.at = time.Now()
	j.abandonInput()
	j.output.endWriting()
}

// ID returns the name of the job in its session.
func (j *Job) ID() string { return j.id }

// Info describes the job, also after its end.
func (j *Job) Info() JobInfo {
	info := JobInfo{
		ID: j.id, Command: j.request.Command, PID: j.process.PID(), Dir: j.dir,
		Terminal: j.request.Terminal != nil, StartedAt: j.began, Output: j.output.writtenBytes(), Running: true,
	}
	select {
	case <-j.ended:
	default:
		return info
	}
	info.Running, info.EndedAt = false, j.at
	info.ExitCode, info.OutOfMemory = j.status.Code, j.status.OutOfMemory
	if j.err != nil {
		info.Error = j.err.Error()
		info.ExitCode = 128 + int(sandpit.SIGKILL)
	}
	return info
}

// Output returns up to most bytes of both outputs from an offset on. Without any yet, it
// waits for output or the end of the job. The default of most is 64 KiB.
func (j *Job) Output(ctx context.Context, offset int64, most int) (Chunk, error) {
	if most < 1 {
		most = 64 << 10
	}
	for {
		chunk, changed := j.output.readAt(offset, most)
		if len(chunk.Data) > 0 || chunk.Ended {
			return chunk, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return chunk, ctx.Err()
		}
	}
}

// Peek returns what Output returns, or an empty chunk if there is nothing yet.
func (j *Job) Peek(offset int64, most int) Chunk {
	if most < 1 {
		most = 64 << 10
	}
	chunk, _ := j.output.readAt(offset, most)
	return chunk
}

// Follow copies the output from an offset on to w until the job or ctx has ended. A reader
// that is slower than the job misses output that is no longer kept.
func (j *Job) Follow(ctx context.Context, offset int64, w io.Writer) error {
	for {
		chunk, err := j.Output(ctx, offset, 0)
		if err != nil {
			return err
		}
		if len(chunk.Data) > 0 {
			if _, err := w.Write(chunk.Data); err != nil {
				return err
			}
		}
		if chunk.Ended {
			return nil
		}
		offset = chunk.Next
	}
}

// Write sends input, or keys of a terminal, to the job. It waits while 64 KiB are unread.
// Conflict: the job has no input. Gone: the job or its input has ended.
func (j *Job) Write(ctx context.Context, p []byte) error {
	if j.input == nil {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "job %s has no input", j.id), "start the job with an open input")
	}
	return j.input.queueInput(ctx, p)
}

// CloseInput ends the input; for a terminal it sends Ctrl-D. It is idempotent. Conflict: the
// job has no input.
func (j *Job) CloseInput() error {
	if j.input == nil {
		return sandpit.Errorf(sandpit.Conflict, "job %s has no input", j.id)
	}
	j.input.closeInput()
	return nil
}

// Resize sets the terminal's size. Conflict: the job has no terminal.
func (j *Job) Resize(ctx context.Context, size sandpit.TerminalSize) error {
	return j.session.noteGone(j.process.Resize(ctx, size))
}

// maxSignal is the highest number of a signal.
const maxSignal = 64

// Signal sends a signal to the job: SIGTERM and SIGKILL to all its descendants, others to its
// process group. Gone: the job has ended.
func (j *Job) Signal(ctx context.Context, sig sandpit.Signal) error {
	if sig < 1 || sig > maxSignal {
		return sandpit.Errorf(sandpit.Invalid, "signal %d: want 1 to %d", sig, maxSignal)
	}
	select {
	case <-j.ended:
		return sandpit.Errorf(sandpit.Gone, "signal job %s: it has ended", j.id)
	default:
	}
	if sig == sandpit.SIGTERM || sig == sandpit.SIGKILL {
		return j.process.Signal(ctx, sig)
	}
	_, err := runScript(ctx, j.session.guest, script{
		user: j.session.o.User, text: `kill -s "$1" -- "-$2"`, args: []string{strconv.Itoa(int(sig)), strconv.Itoa(j.process.PID())},
	})
	return err
}

// Kill kills the job and all its descendants. It is idempotent.
func (j *Job) Kill(ctx context.Context) error {
	if err := j.Signal(ctx, sandpit.SIGKILL); sandpit.CodeOf(err) != sandpit.Gone {
		return err
	}
	return nil
}

// Wait returns when the job has ended and all of its output can be read. Timeout: the job's
// timeout has passed. Gone: the sandbox has ended. It may be called concurrently.
func (j *Job) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case <-j.ended:
		return j.status, j.err
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
}

// jobs has the jobs of one session, oldest first. Ended jobs are kept until a new one needs
// their place.
type jobs struct {
	mu        sync.Mutex
	max       int
	next      int
	list      []*Job
	published map[*Job]bool // published jobs
}

// addJob reserves a place for j and sets its name.
func (js *jobs) addJob(j *Job) error {
	js.mu.Lock()
	defer js.mu.Unlock()
	for i := 0; len(js.list) >= js.max && i < len(js.list); {
		select {
		case <-js.list[i].ended:
			js.list[i].freeOutput()
			delete(js.published, js.list[i])
			js.list = append(js.list[:i:i], js.list[i+1:]...)
		default:
			i++
		}
	}
	if len(js.list) >= js.max {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%d jobs run in this session, the limit is reached", len(js.list)), "kill one first")
	}
	js.next++
	j.id = "job-" + strconv.Itoa(js.next)
	js.list = append(js.list, j)
	return nil
}

// publishJob makes j visible to other callers.
func (js *jobs) publishJob(j *Job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.published == nil {
		js.published = make(map[*Job]bool)
	}
	js.published[j] = true
}

func (js *jobs) removeJob(j *Job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for i, other := range js.list {
		if other == j {
			js.list = append(js.list[:i:i], js.list[i+1:]...)
			return
		}
	}
}

// startedJobs returns the published jobs.
func (js *jobs) startedJobs() []*Job {
	js.mu.Lock()
	defer js.mu.Unlock()
	list := make([]*Job, 0, len(js.list))
	for _, j := range js.list {
		if js.published[j] {
			list = append(list, j)
		}
	}
	return list
}

// countRunning returns the number of jobs that have not ended.
func (js *jobs) countRunning() (n int) {
	for _, j := range js.startedJobs() {
		select {
		case <-j.ended:
		default:
			n++
		}
	}
	return n
}

// Jobs returns the jobs of the session, oldest first, with the ended ones that are kept.
func (s *Session) Jobs() []*Job { return s.jobs.startedJobs() }

// Job returns a job by its name. NotFound: no such job, or it is no longer kept.
func (s *Session) Job(id string) (*Job, error) {
	for _, j := range s.jobs.startedJobs() {
		if j.id == id {
			return j, nil
		}
	}
	return nil, sandpit.Errorf(sandpit.NotFound, "the session has no job %q", id)
}
