// Package script has a model that follows a script, and a server that speaks the protocols of
// vendors for it. Tests and demonstrations of agents work with it without a key and without a
// network.
//
// A script is a TOML file. Each request takes the next turn:
//
//	model = "demo"      # default: "script"
//	window = 8000       # tokens; default: unknown
//
//	[[turn]]
//	expect = { last = "(?i)hello", tools = ["bash"] }
//	text = "I look at the files."
//	  [[turn.call]]
//	  name = "bash"
//	  arguments = { command = "ls" }
//
//	[[turn]]
//	error = { kind = "rate_limit", retry_after = "1s" }
//
//	[[turn]]
//	expect.last = 'hello\.txt'
//	text = "There is one file."
//	usage = { input = 900, cached = 800, output = 12 }
package script

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// Script is what a model says, turn by turn.
type Script struct {
	// Model is the name of the model. Default: "script".
	Model string `toml:"model"`
	// Window is what Model.Window returns. Default: 0, unknown.
	Window int `toml:"window"`
	// Turns are the answers. A request after the last one is an error.
	Turns []Turn `toml:"turn"`
}

// Turn is the answer to one request.
type Turn struct {
	// Expect is what the request must contain. If it does not, the script ends with an error.
	Expect Expect `toml:"expect"`
	// Thinking is the model's reasoning, which the server's protocols return signed or encrypted.
	// Default: none.
	Thinking string `toml:"thinking"`
	// Text is what the model says.
	Text string `toml:"text"`
	// Calls are the tools that it calls.
	Calls []Call `toml:"call"`
	// Stop is why the response ends. Default: "tools" with calls, else "end".
	Stop model.StopReason `toml:"stop"`
	// Usage is what the request took. Default: an estimate of a token for four bytes.
	Usage *Usage `toml:"usage"`
	// Delay is how long the model waits before it says something. Default: not at all.
	Delay Duration `toml:"delay"`
	// Times is how many requests get this answer. Default: 1.
	Times int `toml:"times"`
	// Error is what happens instead of a response, or after Text. Default: nothing.
	Error *Failure `toml:"error"`
}

// Call is a call of a tool.
type Call struct {
	// ID identifies the call. Default: "call_TURN_NUMBER".
	ID   string `toml:"id"`
	Name string `toml:"name"`
	// Arguments are the arguments, and Raw is a text instead, which need not be valid JSON.
	// Default: no arguments.
	Arguments map[string]any `toml:"arguments"`
	Raw       string         `toml:"raw"`
}

// Usage is how many tokens a request took.
type Usage struct {
	Input  int `toml:"input"`
	Cached int `toml:"cached"`
	Output int `toml:"output"`
}

// Expect is what a request must contain. Patterns are regular expressions, which match a part of
// a text. Default: anything.
type Expect struct {
	// Last is a pattern for the text of the last message; of several results of tools at the
	// end, for all of them together.
	Last string `toml:"last"`
	// Not is a pattern that the last message must not match.
	Not string `toml:"not"`
	// Any is a pattern for the text of any message.
	Any string `toml:"any"`
	// System is a pattern for the system prompt.
	System string `toml:"system"`
	// Role is the role of the last message.
	Role model.Role `toml:"role"`
	// Tools are names of tools that the model may call. Others may be there.
	Tools []string `toml:"tools"`
	// Images is how many images the last message has at least.
	Images int `toml:"images"`
}

// Failure is an error that a turn raises.
type Failure struct {
	Kind Kind `toml:"kind"`
	// Message is the text of the error. Default: one like the vendors'.
	Message string `toml:"message"`
	// RetryAfter is when to try again, for rate_limit and overloaded. Default: not said.
	RetryAfter Duration `toml:"retry_after"`
}

// Kind is a kind of failure.
type Kind string

// The kinds.
const (
	RateLimit       Kind = "rate_limit"      // 429
	Quota           Kind = "quota"           // the account has no credit
	Overloaded      Kind = "overloaded"      // 503 or 529
	ServerError     Kind = "server"          // 500
	Unauthenticated Kind = "unauthenticated" // 401
	InvalidRequest  Kind = "invalid"         // 400
	TooLong         Kind = "too_long"        // the conversation does not fit
	Cut             Kind = "cut"             // the connection ends, after Text if there is one
	Nonsense        Kind = "nonsense"        // what comes does not follow the protocol
	Hang            Kind = "hang"            // nothing comes until the client gives up
)

var kinds = []Kind{RateLimit, Quota, Overloaded, ServerError, Unauthenticated, InvalidRequest, TooLong, Cut, Nonsense, Hang}

// Duration is a time.Duration that is written like "1.5s".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 {
		return fmt.Errorf("invalid duration %q; use for example 1.5s", text)
	}
	*d = Duration(parsed)
	return nil
}

// Load reads a script from a file.
//
// NotFound: there is no such file. Invalid: it is not a script.
func Load(name string) (*Model, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the script of the model: %w", err)
	}
	m, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("script %q: %w", name, err)
	}
	return m, nil
}

// Parse reads a script.
//
// Invalid: the text is not a script.
func Parse(text []byte) (*Model, error) {
	var s Script
	meta, err := toml.Decode(string(text), &s)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	for _, key := range meta.Undecoded() {
		if !strings.HasPrefix(key.String(), "turn.call.arguments.") { // arguments are free
			return nil, sandpit.Errorf(sandpit.Invalid, "unknown key %q", key.String())
		}
	}
	return New(s)
}

// check looks at everything that does not depend on requests.
func (s Script) check() error {
	if len(s.Turns) == 0 {
		return sandpit.Errorf(sandpit.Invalid, "the script has no turn; begin one with [[turn]]")
	}
	for i, t := range s.Turns {
		if err := t.check(); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "turn %d: %w", i+1, err)
		}
	}
	return nil
}

func (t Turn) check() error {
	for name, pattern := range t.Expect.patterns() {
		if _, err := regexp.Compile(pattern); err != nil {
			return fmt.Errorf("expect.%s: %w", name, err)
		}
	}
	stops := []model.StopReason{"", model.StopEnd, model.StopTools, model.StopLength, model.StopRefusal}
	switch {
	case !slices.Contains(stops, t.Stop):
		return fmt.Errorf("unknown stop %q; use end, tools, length or refusal", t.Stop)
	case t.Times < 0:
		return fmt.Errorf("times is %d; use at least 1", t.Times)
	case t.Error == nil:
	case !slices.Contains(kinds, t.Error.Kind):
		return fmt.Errorf("unknown kind of error %q; use one of %q", t.Error.Kind, kinds)
	case len(t.Calls) > 0:
		return errors.New("the turn has calls and an error; use two turns")
	}
	for _, c := range t.Calls {
		if c.Name == "" {
			return errors.New("a call has no name")
		}
		if c.Raw != "" && c.Arguments != nil {
			return fmt.Errorf("the call of %q has arguments and raw; use one of them", c.Name)
		}
	}
	return nil
}

// patterns returns the patterns by their names in a script.
func (e Expect) patterns() map[string]string {
	return map[string]string{"last": e.Last, "not": e.Not, "any": e.Any, "system": e.System}
}

// toolCalls returns the calls of turn number n, which counts from 1.
func (t Turn) toolCalls(n int) ([]model.ToolCall, error) {
	var list []model.ToolCall
	for i, c := range t.Calls {
		call := model.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Raw}
		if call.ID == "" {
			call.ID = fmt.Sprintf("call_%d_%d", n, i+1)
		}
		if c.Raw == "" {
			arguments := c.Arguments
			if arguments == nil {
				arguments = map[string]any{}
			}
			text, err := json.Marshal(arguments)
			if err != nil {
				return nil, sandpit.Errorf(sandpit.Invalid, "turn %d: arguments of %q: %w", n, c.Name, err)
			}
			call.Arguments = string(text)
		}
		list = append(list, call)
	}
	return list, nil
}

// words cuts a text into the parts in which a model says it.
func words(text string) []string { return strings.SplitAfter(text, " ") }
