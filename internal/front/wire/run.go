package wire

// Run is a request to run a command. It has exactly one of Command and Args.
type Run struct {
	Command   string            `json:"command,omitempty" doc:"A command line for a shell in the sandbox (sh -c). Exclusive with args."`
	Args      []string          `json:"args,omitempty" doc:"A program and its arguments, without a shell. Exclusive with command."`
	Env       map[string]string `json:"env,omitempty"`
	Dir       string            `json:"dir,omitempty" doc:"The working directory. Default: the sandbox's."`
	User      string            `json:"user,omitempty" doc:"The user of the processes. Default: the sandbox's."`
	Stdin     string            `json:"stdin,omitempty" doc:"The complete input. Default: empty."`
	Timeout   float64           `json:"timeout_seconds,omitempty" doc:"Seconds until the command is killed. Default: the server's, or never with detach; below zero: never."`
	Detach    bool              `json:"detach,omitempty" doc:"Respond with a Started as soon as the command runs. It keeps running without a client; its output can be read later."`
	MaxOutput int64             `json:"max_output,omitempty" minimum:"0" doc:"Maximum number of bytes of each stream in the response. Default: 1 MiB."`
}

// Output is the content of the events "stdout" and "stderr".
type Output struct {
	Data []byte `json:"data" doc:"Base64."`
}

// Started is the content of the event "start", the first one of a command's stream.
type Started struct {
	ID  string `json:"command_id,omitempty" doc:"ID of the command while the sandbox exists."`
	PID int    `json:"pid,omitempty" doc:"Process ID inside the sandbox."`
}

// Exit is the content of the event "exit", the last one of a command's stream, unless the
// last one is "error" with a Problem.
type Exit struct {
	ID          string  `json:"command_id,omitempty"`
	ExitCode    int     `json:"exit_code" doc:"128 plus the number of the signal, if a signal killed the command."`
	Duration    float64 `json:"duration_seconds" doc:"By the clock of the server."`
	TimedOut    bool    `json:"timed_out"`
	OutOfMemory bool    `json:"out_of_memory,omitempty"`
}

// Announcement reports a command that the client is about to run in a shell, or how one ended.
type Announcement struct {
	Args  []string `json:"args,omitempty" maxItems:"65536" doc:"The command and its arguments: for a shell, its name, -c and the text."`
	Dir   string   `json:"dir,omitempty" doc:"The working directory. Default: unknown."`
	Ended *Ended   `json:"ended,omitempty" doc:"How a command ended that was announced before. Exclusive with args."`
}

// Ended is how an announced command ended.
type Ended struct {
	Took     float64 `json:"took_seconds" minimum:"0" maximum:"1e9"`
	ExitCode int     `json:"exit_code" minimum:"0" maximum:"255"`
}
