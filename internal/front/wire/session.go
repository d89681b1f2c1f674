package wire

import "time"

// NewSession asks for a terminal session: a shell that remembers.
type NewSession struct {
	Name string            `json:"name,omitempty" doc:"Up to 64 letters, digits, _ . and -. Default: one is chosen."`
	Dir  string            `json:"dir,omitempty" doc:"Where the shell starts; it is made if missing. Default: the sandbox's working directory."`
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty" doc:"Default: the sandbox's."`
	// Timeout is for commands that give none. Default: 60 seconds.
	Timeout float64 `json:"timeout_seconds,omitempty" minimum:"0" doc:"Seconds, for commands that give none. Default: 60."`
	// MaxOutput is how many bytes are kept of each output. Default: 1 MiB.
	MaxOutput  int64 `json:"max_output,omitempty" minimum:"0" doc:"Bytes kept of each output. Default: 1 MiB."`
	RefuseBusy bool  `json:"refuse_busy,omitempty" doc:"Refuse a command while another one runs. Default: it waits."`
}

// Session is what a terminal session is like.
type Session struct {
	ID        string    `json:"id"`
	Shell     string    `json:"shell" doc:"bash or sh."`
	Cwd       string    `json:"cwd,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	LastUsed  time.Time `json:"last_used"`
	Runs      int       `json:"runs" doc:"How many commands have run."`
	Waiting   int       `json:"waiting" doc:"How many commands run or wait."`
	Jobs      int       `json:"jobs" doc:"How many jobs run."`
}

// SessionRun asks for a command in the shell of a session.
type SessionRun struct {
	Command        string  `json:"command" doc:"A piece of a shell script."`
	Timeout        float64 `json:"timeout_seconds,omitempty" minimum:"0" doc:"Seconds until it is stopped. Default: the session's."`
	Stdin          string  `json:"stdin,omitempty" doc:"Its whole input. Default: empty."`
	SeparateStderr bool    `json:"separate_stderr,omitempty" doc:"Give errors a stream of their own. Default: all is in stdout, in order."`
	MaxOutput      int64   `json:"max_output,omitempty" minimum:"0" doc:"Bytes of each output in the answer. Default: the session's."`
}

// SessionResult is what came of it.
type SessionResult struct {
	// Stdout and Stderr are its output; bytes that are no UTF-8 are U+FFFD here.
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// StdoutBytes and StderrBytes are the exact output if that is not all UTF-8.
	StdoutBytes []byte `json:"stdout_base64,omitempty" doc:"The exact output, if not all of it is UTF-8."`
	StderrBytes []byte `json:"stderr_base64,omitempty" doc:"The exact output, if not all of it is UTF-8."`
	StdoutSize  int64  `json:"stdout_size" doc:"Bytes that were written, left out or not."`
	StderrSize  int64  `json:"stderr_size"`
	Truncated   bool   `json:"truncated" doc:"The middle of a stream is left out."`
	// Late is what background children of earlier commands wrote meanwhile.
	Late     string  `json:"late,omitempty" doc:"What children of earlier commands wrote while no command ran."`
	ExitCode int     `json:"exit_code"`
	Duration float64 `json:"duration_seconds" doc:"By the server's clock."`
	TimedOut bool    `json:"timed_out"`
	// Outcome says what was done to the command.
	Outcome   string `json:"outcome" enum:"completed,interrupted,killed,lost,ended" doc:"What was done to it, and whether the shell goes on."`
	StateLost bool   `json:"state_lost,omitempty" doc:"The shell is no more; the next command gets a new one."`
	Fresh     bool   `json:"fresh,omitempty" doc:"It got a new shell."`
	Cwd       string `json:"cwd,omitempty" doc:"The working directory after it."`
}

// NewJob asks for a program beside the shell of a session, in its directory and with
// its variables.
type NewJob struct {
	Command  string        `json:"command" doc:"A piece of a shell script. With a terminal, empty is an interactive shell."`
	Timeout  float64       `json:"timeout_seconds,omitempty" minimum:"0" doc:"Seconds until it is killed. Default: never."`
	Stdin    bool          `json:"stdin,omitempty" doc:"Keep an input open for it. Default: its input is empty."`
	Terminal *TerminalSize `json:"terminal,omitempty" doc:"Give it a terminal."`
	// MaxOutput is how many bytes of its output are kept. Default: the session's.
	MaxOutput int64 `json:"max_output,omitempty" minimum:"0" doc:"Bytes of its output that are kept. Default: the session's."`
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols uint16 `json:"cols" minimum:"1"`
	Rows uint16 `json:"rows" minimum:"1"`
}

// Job is what a job is like.
type Job struct {
	ID        string    `json:"id"`
	Command   string    `json:"command,omitempty"`
	PID       int       `json:"pid"`
	Dir       string    `json:"dir,omitempty"`
	Terminal  bool      `json:"terminal,omitempty"`
	StartedAt time.Time `json:"started_at"`
	Output    int64     `json:"output" doc:"Bytes put out so far."`
	Running   bool      `json:"running"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	ExitCode  int       `json:"exit_code" doc:"Once it has ended."`
	// OutOfMemory is true if it was killed because memory had run out.
	OutOfMemory bool   `json:"out_of_memory,omitempty"`
	Error       string `json:"error,omitempty" doc:"Why nobody knows how it ended, or that its time was over."`
}

// Chunk is a piece of the output of a job.
type Chunk struct {
	Data   []byte `json:"data" doc:"Base64."`
	Offset int64  `json:"offset" doc:"Where data begins: beyond what was asked for, if that is no longer kept."`
	Next   int64  `json:"next" doc:"The offset to go on at."`
	Ended  bool   `json:"ended,omitempty" doc:"The job has ended and nothing follows."`
}

// Input is what a job is to read.
type Input struct {
	Data []byte `json:"data,omitempty" doc:"Base64."`
	Text string `json:"text,omitempty" doc:"Instead of data."`
	End  bool   `json:"end,omitempty" doc:"Nothing follows."`
}

// Control is a text frame of a terminal's WebSocket that a client sends. Binary frames
// are keys.
type Control struct {
	Resize *TerminalSize `json:"resize,omitempty"`
}

// TerminalExit is the last frame that a server sends on a terminal's WebSocket, as
// text.
type TerminalExit struct {
	// ExitCode is absent if nobody knows it; Problem says why then.
	ExitCode *int     `json:"exit_code,omitempty"`
	Problem  *Problem `json:"problem,omitempty"`
}
