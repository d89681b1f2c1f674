package envdtest

import (
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/commands"
)

// CommandID is the ID of the only command of a Liar.
const CommandID = "command"

const idHeader = "Sandpit-Command-Id"

// command returns an honest command that has ended, modified by change.
func command(change func(*commands.Command)) *commands.Command {
	c := &commands.Command{
		Id: CommandID, Pid: honestPID, Args: []string{"true"}, StartedAt: 1_000_000,
		Ended:  &commands.Ended{Exited: true, Status: "exit status 0", EndedAt: 1_000_001},
		Stdout: &commands.Amount{Size: 3}, Stderr: &commands.Amount{},
	}
	change(c)
	return c
}

func unchanged(*commands.Command) {}

func followStart(c *commands.Command) *commands.FollowResponse {
	return &commands.FollowResponse{Event: &commands.FollowResponse_Start{Start: c}}
}

func followEnd(c *commands.Command) *commands.FollowResponse {
	return &commands.FollowResponse{Event: &commands.FollowResponse_End{End: c}}
}

func output(stream commands.Stream, offset int64, data string) *commands.FollowResponse {
	return &commands.FollowResponse{Event: &commands.FollowResponse_Output{
		Output: &commands.Output{Stream: stream, Offset: offset, Data: []byte(data)},
	}}
}

func missing(stream commands.Stream, offset, n int64) *commands.FollowResponse {
	return &commands.FollowResponse{Event: &commands.FollowResponse_Missing{
		Missing: &commands.Missing{Stream: stream, Offset: offset, Bytes: n},
	}}
}

const (
	out  = commands.Stream_STREAM_STDOUT
	errs = commands.Stream_STREAM_STDERR
)

func honestCommands() answers {
	c := command(unchanged)
	return answers{
		"ListCommands":  unary(&commands.ListCommandsResponse{Commands: []*commands.Command{c}}),
		"GetCommand":    unary(&commands.GetCommandResponse{Command: c}),
		"ForgetCommand": unary(&commands.ForgetCommandResponse{}),
		"Follow":        streamed(ended, followStart(c), output(out, 0, "out"), followEnd(c)),
	}
}

// followLies are about the replayed output of a command.
func followLies() map[string]answers {
	start, fine, said := followStart(command(unchanged)), followEnd(command(unchanged)), output(out, 0, "out")
	follow := func(then func(*call), messages ...proto.Message) answers {
		return answers{"Follow": streamed(then, messages...)}
	}
	one := func(lie *commands.FollowResponse) answers { return follow(ended, start, lie, fine) }
	keepAlive := &commands.FollowResponse{Event: &commands.FollowResponse_Keepalive{}}
	return map[string]answers{
		"follow-no-start": follow(ended, said, fine), "follow-only-end": follow(ended, fine), "follow-start-twice": one(start),
		"follow-nil-start": follow(ended, followStart(nil), said, fine), "follow-nil-end": follow(ended, start, said, followEnd(nil)),
		"follow-nil":           one(&commands.FollowResponse{}),
		"follow-other":         follow(ended, followStart(command(func(c *commands.Command) { c.Id = "other" })), said, fine),
		"follow-ahead":         one(output(out, 1, "out")),
		"follow-again":         follow(ended, start, said, said, fine),
		"follow-back":          follow(ended, start, said, output(out, 2, "t"), fine),
		"follow-place-minus":   one(output(out, -1, "out")),
		"follow-place-min":     one(output(out, math.MinInt64, "out")),
		"follow-place-max":     one(output(out, math.MaxInt64, "out")),
		"follow-empty":         one(output(out, 0, "")),
		"follow-stream-0":      one(output(0, 0, "out")),
		"follow-stream-99":     one(output(99, 0, "out")),
		"follow-stream-min":    one(output(math.MinInt32, 0, "out")),
		"follow-missing-0":     one(missing(out, 0, 0)),
		"follow-missing-minus": one(missing(out, 0, -3)),
		"follow-missing-max":   follow(ended, start, missing(out, 0, math.MaxInt64), missing(out, math.MaxInt64, 1), fine),
		"follow-missing-more":  follow(ended, start, missing(out, 0, 7), output(out, math.MinInt64+7, "x"), fine),
		"follow-missing-ahead": one(missing(errs, 5, 3)),
		"follow-less":          follow(ended, start, output(out, 0, "o"), fine),
		"follow-more":          follow(ended, start, output(out, 0, "out and more"), fine),
		"follow-still":         follow(ended, start, said, followEnd(command(func(c *commands.Command) { c.Ended = nil }))),
		"follow-end-twice":     follow(ended, start, said, fine, fine),
		"follow-end-silent":    follow(silent, start, said, fine),
		"follow-end-endless":   follow(forever(said), start, said, fine),
		"follow-cut":           follow(cutOff, start, said),
		"follow-ended":         follow(ended, start, said),
		"follow-silent":        follow(silent),
		"follow-start-silent":  follow(silent, start),
		"follow-keepalives":    follow(forever(keepAlive)),
		"follow-keepalive-on":  follow(forever(keepAlive), start),
		"follow-endless":       follow(endlessOutput(32*kib), start),
		"follow-bytes":         follow(endlessOutput(1), start),
		"follow-endless-1mib":  follow(endlessOutput(mib-100), start),
	}
}

// commandLies are about descriptions of commands.
func commandLies() map[string]answers {
	start, said := followStart(command(unchanged)), output(out, 0, "out")
	// described adds a lie to every description of a command.
	described := func(change func(*commands.Command)) answers {
		c := command(change)
		return answers{
			"ListCommands": unary(&commands.ListCommandsResponse{Commands: []*commands.Command{c, c}}),
			"GetCommand":   unary(&commands.GetCommandResponse{Command: c}),
			"Follow":       streamed(ended, start, said, followEnd(c)),
		}
	}
	amount := func(size, dropped int64) answers {
		return described(func(c *commands.Command) { c.Stdout = &commands.Amount{Size: size, Dropped: dropped} })
	}
	named := func(id string) answers { return described(func(c *commands.Command) { c.Id = id }) }
	many := func(n int, change func(*commands.Command)) answers {
		return answers{"ListCommands": unaryBytes(func() []byte {
			return repeatedly(encode(&commands.ListCommandsResponse{Commands: []*commands.Command{command(change)}}), n)
		})}
	}
	return map[string]answers{
		"command-nil": {
			"ListCommands": unaryBytes(func() []byte { return hollow(1, 2) }),
			"GetCommand":   unary(&commands.GetCommandResponse{}),
		},
		"command-no-id": named(""), "command-id-slash": named("../x"), "command-id-escapes": named("\x1b[2J"), "command-id-1mib": named(strings.Repeat("i", mib)),
		"command-pid-0":   described(func(c *commands.Command) { c.Pid = 0 }),
		"command-pid-max": described(func(c *commands.Command) { c.Pid = math.MaxUint32 }),
		"command-no-args": described(func(c *commands.Command) { c.Args = nil }),
		"command-size":    amount(-1, 0), "command-size-min": amount(math.MinInt64, 0), "command-size-max": amount(math.MaxInt64, 0),
		"command-dropped": amount(3, 4), "command-dropped-minus": amount(3, -1), "command-dropped-max": amount(3, math.MaxInt64),
		"command-start-max": described(func(c *commands.Command) { c.StartedAt = math.MaxInt64 }),
		"command-start-min": described(func(c *commands.Command) { c.StartedAt = math.MinInt64 }),
		"command-end-max":   described(func(c *commands.Command) { c.Ended.EndedAt = math.MaxInt64 }),
		"command-exit":      described(func(c *commands.Command) { c.Ended.ExitCode, c.Ended.Status = math.MinInt32, "signal: 4294967295" }),
		"command-exit-256":  described(func(c *commands.Command) { c.Ended.ExitCode = 256 }),
		"commands-many":     many(300_000, unchanged), "commands-args": many(10, func(c *commands.Command) { c.Args = make([]string, 100_000) }),
		"commands-17mib":  many(1, func(c *commands.Command) { c.Tag = strings.Repeat("t", 17*mib) }),
		"commands-hollow": {"ListCommands": unaryBytes(func() []byte { return hollow(1, 15*mib) })},

		"id-other":   answered("another"),
		"id-escapes": answered("\x1b[2J"),
		"id-60kib":   answered(strings.Repeat("i", 60*kib)),
	}
}

// answered returns a Start that reports another command than the requested one.
func answered(id string) answers {
	return answers{"Start": func(c *call) {
		c.w.Header().Set(idHeader, id)
		streamed(ended, started(honestPID), exited(0, "exit status 0"))(c)
	}}
}

// endlessOutput sends consecutive output forever, in pieces of a size.
func endlessOutput(size int) func(*call) {
	data := strings.Repeat("x", size)
	return func(c *call) {
		for at := int64(0); c.ctx.Err() == nil && c.message(output(out, at, data)); at += int64(size) {
			time.Sleep(time.Duration(size) * time.Second / pace)
		}
	}
}
