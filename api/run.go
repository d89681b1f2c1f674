package api

// RunResult is the result of a command.
type RunResult struct {
	ID          string  `json:"command_id,omitempty" doc:"ID of the command while the sandbox exists. Its output can be read again with it."`
	Stdout      string  `json:"stdout" doc:"The output. Bytes that are not UTF-8 are replaced by U+FFFD."`
	Stderr      string  `json:"stderr" doc:"The output. Bytes that are not UTF-8 are replaced by U+FFFD."`
	StdoutBytes []byte  `json:"stdout_base64,omitempty" doc:"The exact output as base64; absent if the output is UTF-8."`
	StderrBytes []byte  `json:"stderr_base64,omitempty" doc:"The exact output as base64; absent if the output is UTF-8."`
	ExitCode    int     `json:"exit_code" doc:"128 plus the number of the signal, if a signal killed the command."`
	Duration    float64 `json:"duration_seconds" doc:"By the clock of the server."`
	Truncated   bool    `json:"truncated" doc:"The middle of a stream is missing."`
	TimedOut    bool    `json:"timed_out" doc:"The command was killed at its timeout."`
	OutOfMemory bool    `json:"out_of_memory,omitempty"`
}
