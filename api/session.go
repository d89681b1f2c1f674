package api

import "time"

// Session is the state of a terminal session.
type Session struct {
	ID        string    `json:"id"`
	Shell     string    `json:"shell" doc:"bash or sh."`
	Cwd       string    `json:"cwd,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	LastUsed  time.Time `json:"last_used"`
	Runs      int       `json:"runs" doc:"Number of commands that have run."`
	Waiting   int       `json:"waiting" doc:"Number of commands that run or wait."`
	Jobs      int       `json:"jobs" doc:"Number of running jobs."`
}

// SessionResult is the result of a command in a terminal session.
type SessionResult struct {
	Stdout      string  `json:"stdout" doc:"The output. Bytes that are not UTF-8 are replaced by U+FFFD."`
	Stderr      string  `json:"stderr" doc:"The output. Bytes that are not UTF-8 are replaced by U+FFFD."`
	StdoutBytes []byte  `json:"stdout_base64,omitempty" doc:"The exact output as base64; absent if the output is UTF-8."`
	StderrBytes []byte  `json:"stderr_base64,omitempty" doc:"The exact output as base64; absent if the output is UTF-8."`
	StdoutSize  int64   `json:"stdout_size" doc:"Number of bytes that the command wrote, including those left out."`
	StderrSize  int64   `json:"stderr_size"`
	Truncated   bool    `json:"truncated" doc:"The middle of a stream is missing."`
	Late        string  `json:"late,omitempty" doc:"Output of background processes of earlier commands while no command ran."`
	ExitCode    int     `json:"exit_code"`
	Duration    float64 `json:"duration_seconds" doc:"By the clock of the server."`
	TimedOut    bool    `json:"timed_out"`
	Outcome     string  `json:"outcome" enum:"completed,interrupted,killed,lost,ended" doc:"How the command ended, and whether the shell still runs."`
	StateLost   bool    `json:"state_lost,omitempty" doc:"The shell has ended; the next command gets a new one."`
	Fresh       bool    `json:"fresh,omitempty" doc:"The command got a new shell."`
	Cwd         string  `json:"cwd,omitempty" doc:"The working directory after the command."`
}
