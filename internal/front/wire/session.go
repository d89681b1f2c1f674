package wire

import "time"

// NewSession is a request for a terminal session: a shell that keeps its state.
type NewSession struct {
	Name       string            `json:"name,omitempty" doc:"Up to 64 letters, digits, _ . and -. Default: the server chooses a name."`
	Dir        string            `json:"dir,omitempty" doc:"The working directory of the shell; it is created if missing. Default: the sandbox's."`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty" doc:"The user of the processes. Default: the sandbox's."`
	Timeout    float64           `json:"timeout_seconds,omitempty" minimum:"0" doc:"Timeout in seconds of commands that have none. Default: 60."`
	MaxOutput  int64             `json:"max_output,omitempty" minimum:"0" doc:"Number of bytes kept of each output. Default: 1 MiB."`
	RefuseBusy bool              `json:"refuse_busy,omitempty" doc:"Refuse a command while another one runs. Default: the command waits."`
}

// SessionRun is a request to run a command in the shell of a session.
type SessionRun struct {
	Command        string  `json:"command" doc:"A piece of a shell script."`
	Timeout        float64 `json:"timeout_seconds,omitempty" minimum:"0" doc:"Seconds until the command is stopped. Default: the session's."`
	Stdin          string  `json:"stdin,omitempty" doc:"The complete input. Default: empty."`
	SeparateStderr bool    `json:"separate_stderr,omitempty" doc:"Return stderr separately. Default: stdout has all output in order."`
	MaxOutput      int64   `json:"max_output,omitempty" minimum:"0" doc:"Maximum number of bytes of each output in the response. Default: the session's."`
}

// NewJob is a request for a program in the background of a session, in its directory and
// with its variables.
type NewJob struct {
	Command   string        `json:"command" doc:"A piece of a shell script. With a terminal, empty is an interactive shell."`
	Timeout   float64       `json:"timeout_seconds,omitempty" minimum:"0" doc:"Seconds until the job is killed. Default: never."`
	Stdin     bool          `json:"stdin,omitempty" doc:"Keep the input of the job open. Default: the input is empty."`
	Terminal  *TerminalSize `json:"terminal,omitempty" doc:"Give it a terminal."`
	MaxOutput int64         `json:"max_output,omitempty" minimum:"0" doc:"Number of bytes kept of the output. Default: the session's."`
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols uint16 `json:"cols" minimum:"1"`
	Rows uint16 `json:"rows" minimum:"1"`
}

// Job is the state of a job.
type Job struct {
	ID          string    `json:"id"`
	Command     string    `json:"command,omitempty"`
	PID         int       `json:"pid"`
	Dir         string    `json:"dir,omitempty"`
	Terminal    bool      `json:"terminal,omitempty"`
	StartedAt   time.Time `json:"started_at"`
	Output      int64     `json:"output" doc:"Bytes written so far."`
	Running     bool      `json:"running"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	ExitCode    int       `json:"exit_code" doc:"Set once the job has ended."`
	OutOfMemory bool      `json:"out_of_memory,omitempty" doc:"The job was killed because memory ran out."`
	Error       string    `json:"error,omitempty" doc:"Why the exit code is unknown, or that the job timed out."`
}

// Chunk is a piece of the output of a job.
type Chunk struct {
	Data   []byte `json:"data" doc:"Base64."`
	Offset int64  `json:"offset" doc:"Offset of data: beyond the requested offset if that output is no longer available."`
	Next   int64  `json:"next" doc:"The offset of the next request."`
	Ended  bool   `json:"ended,omitempty" doc:"The job has ended and nothing follows."`
}

// Input is input for a job.
type Input struct {
	Data []byte `json:"data,omitempty" doc:"Base64."`
	Text string `json:"text,omitempty" doc:"Instead of data."`
	End  bool   `json:"end,omitempty" doc:"Nothing follows."`
}

// Control is a text frame that a client sends on a terminal's WebSocket. Binary frames are
// keys.
type Control struct {
	Resize *TerminalSize `json:"resize,omitempty"`
}

// TerminalExit is the last frame that a server sends on a terminal's WebSocket, as text.
type TerminalExit struct {
	ExitCode *int     `json:"exit_code,omitempty" doc:"Absent if it is unknown; then problem has the reason."`
	Problem  *Problem `json:"problem,omitempty"`
}
