package wire

// Run asks for one command. Exactly one of Command and Args is given.
type Run struct {
	// Command is given to a shell inside.
	Command string `json:"command,omitempty" doc:"Text for a shell (sh -c). Either this or args."`
	// Args are a program and its arguments, with no shell between.
	Args  []string          `json:"args,omitempty" doc:"A program and its arguments. Either this or command."`
	Env   map[string]string `json:"env,omitempty"`
	Dir   string            `json:"dir,omitempty" doc:"Where it starts. Default: the sandbox's working directory."`
	User  string            `json:"user,omitempty" doc:"Default: the sandbox's."`
	Stdin string            `json:"stdin,omitempty" doc:"Its whole input. Default: empty."`
	// Timeout kills it. Default: the server's; below zero means never.
	Timeout float64 `json:"timeout_seconds,omitempty" doc:"Seconds until it is killed. Default: the server's, or never with detach; below zero: never."`
	// Detach answers as soon as the command runs, which then goes on without anybody.
	Detach bool `json:"detach,omitempty" doc:"Answer with a Started as soon as it runs. It goes on without anybody; its output can be had later."`
	// MaxOutput is how many bytes of each stream an answer has at most. Default: 1 MiB.
	MaxOutput int64 `json:"max_output,omitempty" minimum:"0" doc:"Bytes of each stream in the answer at most. Default: 1 MiB."`
}

// RunResult is how it went.
type RunResult struct {
	// ID names the command as long as the sandbox exists; its output can be had again by it.
	ID string `json:"command_id,omitempty"`
	// Stdout and Stderr are its output; bytes that are no UTF-8 are U+FFFD here.
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// StdoutBytes and StderrBytes are the exact output if that is not all UTF-8.
	StdoutBytes []byte `json:"stdout_base64,omitempty" doc:"The exact output, if not all of it is UTF-8."`
	StderrBytes []byte `json:"stderr_base64,omitempty" doc:"The exact output, if not all of it is UTF-8."`
	// ExitCode is 128 plus the number of the signal that killed it, if one did.
	ExitCode int `json:"exit_code"`
	// Duration is in seconds, by the server's clock.
	Duration float64 `json:"duration_seconds"`
	// Truncated says that output is missing: the middle of a stream.
	Truncated bool `json:"truncated"`
	// TimedOut says that its time was up and it was killed.
	TimedOut    bool `json:"timed_out"`
	OutOfMemory bool `json:"out_of_memory,omitempty"`
}

// Output is one piece of output, as the events "stdout" and "stderr" of a stream have it.
type Output struct {
	Data []byte `json:"data" doc:"Base64."`
}

// Started is the first event of a command's stream, "start".
type Started struct {
	ID  string `json:"command_id,omitempty" doc:"Names the command as long as the sandbox exists."`
	PID int    `json:"pid,omitempty" doc:"Its number inside."`
}

// Exit is the last event of a command's stream, "exit", unless that is "error" with a
// Problem.
type Exit struct {
	ID          string  `json:"command_id,omitempty"`
	ExitCode    int     `json:"exit_code" doc:"128 plus the number of the signal that killed it, if one did."`
	Duration    float64 `json:"duration_seconds" doc:"By the server's clock."`
	TimedOut    bool    `json:"timed_out"`
	OutOfMemory bool    `json:"out_of_memory,omitempty"`
}

// Announcement names a command that a client runs inside of a shell, or says how one ended.
type Announcement struct {
	Args  []string `json:"args,omitempty" maxItems:"65536" doc:"The command: for a shell, its name, -c and the text."`
	Dir   string   `json:"dir,omitempty" doc:"Where it starts. Default: unknown."`
	Ended *Ended   `json:"ended,omitempty" doc:"How a command ended that was announced before. Without args."`
}

// Ended says how a command ended.
type Ended struct {
	Took     float64 `json:"took_seconds" minimum:"0" maximum:"1e9"`
	ExitCode int     `json:"exit_code" minimum:"0" maximum:"255"`
}
