package envd

import (
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/commands"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// FuzzCodec reads messages as a hostile guest may write them: none has more parts
// than were asked for.
func FuzzCodec(f *testing.F) {
	add := func(kind uint8, m proto.Message) {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, data)
	}
	entry := &filesystem.EntryInfo{Name: "a", Path: "/a", Metadata: map[string]string{"k": "v"}, ModifiedTime: timestamppb.Now()}
	add(0, &filesystem.ListDirResponse{Entries: []*filesystem.EntryInfo{entry, entry, entry}})
	add(1, &process.ListResponse{Processes: []*process.ProcessInfo{{Pid: 1, Config: &process.ProcessConfig{Cmd: "sh", Args: []string{"-c", "x"}, Envs: map[string]string{"A": "b"}}}}})
	add(2, &process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 7}}}})
	add(3, &filesystem.StatResponse{Entry: entry})
	add(4, &commands.ListCommandsResponse{Commands: []*commands.Command{{Id: "a", Pid: 1, Args: []string{"x"}, Stdout: &commands.Amount{Size: 1}}}})
	f.Add(uint8(0), []byte(strings.Repeat("\x0a\x00", 40)))
	f.Add(uint8(1), []byte{0x0b, 0x0c})
	f.Add(uint8(2), []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		m := []proto.Message{&filesystem.ListDirResponse{}, &process.ListResponse{}, &process.StartResponse{}, &filesystem.StatResponse{}, &commands.ListCommandsResponse{}}[kind%5]
		const most = 16
		var c connect.Codec = codec{most}
		if c.Unmarshal(data, m) != nil {
			return
		}
		if n := parts(m.ProtoReflect()); n > most {
			t.Errorf("%d parts, want at most %d", n, most)
		}
		again, err := c.Marshal(m)
		other := m.ProtoReflect().New().Interface()
		if err != nil || proto.Unmarshal(again, other) != nil || !proto.Equal(m, other) {
			t.Errorf("written again it is another message: %v", err)
		}
	})
}

// FuzzReplay reads a hostile guest's events of a command: the accepted output has no
// unreported gap.
func FuzzReplay(f *testing.F) {
	encode := func(events ...*commands.FollowResponse) (data []byte) {
		for _, e := range events {
			b, err := proto.Marshal(e)
			if err != nil {
				f.Fatal(err)
			}
			data = protowire.AppendBytes(data, b)
		}
		return data
	}
	command := &commands.Command{Id: "c", Pid: 1, Args: []string{"x"}, Ended: &commands.Ended{}, Stdout: &commands.Amount{Size: 9, Dropped: 4}}
	start := &commands.FollowResponse{Event: &commands.FollowResponse_Start{Start: command}}
	missing := &commands.FollowResponse{Event: &commands.FollowResponse_Missing{Missing: &commands.Missing{Stream: 1, Offset: 1, Bytes: 3}}}
	output := &commands.FollowResponse{Event: &commands.FollowResponse_Output{Output: &commands.Output{Stream: 1, Offset: 4, Data: []byte("12345")}}}
	end := &commands.FollowResponse{Event: &commands.FollowResponse_End{End: command}}
	f.Add(encode(start, missing, output, end), int64(1), false)
	f.Add(encode(start, output, missing, output), int64(4), true)
	f.Add(encode(output, start, start, end), int64(1<<62), true)
	f.Fuzz(func(t *testing.T, data []byte, from int64, noWait bool) {
		from = max(from, 0)
		var written, missed int64
		r := &replay{id: "c", to: sandpit.FollowOptions{
			From: sandpit.Offsets{Stdout: from}, NoWait: noWait,
			Stdout: counting{&written}, Stderr: counting{&written}, Missing: func(_ bool, _, n int64) { missed += n },
		}}
		r.result.Next = r.to.From
		for {
			b, n := protowire.ConsumeBytes(data)
			if n < 0 {
				return
			}
			data = data[n:]
			event := &commands.FollowResponse{}
			if proto.Unmarshal(b, event) != nil {
				return
			}
			over, err := r.handleEvent(event)
			next := r.result.Next
			// Sums of what is huge wrap around, on both sides alike.
			if next.Stdout < from || next.Stderr < 0 || next.Stdout+next.Stderr-from != written+missed {
				t.Fatalf("it came to %+v after %d and %d bytes", next, written, missed)
			}
			if over && err == nil && !noWait && (next.Stdout != r.result.Command.Stdout.Size || !r.result.Command.Ended) {
				t.Fatalf("told: %+v", r.result)
			}
			if over || err != nil {
				return
			}
		}
	})
}

type counting struct{ n *int64 }

func (c counting) Write(b []byte) (int, error) {
	*c.n += int64(len(b))
	return len(b), nil
}

// parts counts the messages in a message and the members of its lists.
func parts(m protoreflect.Message) (n int) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			n += value.Map().Len()
		case field.IsList():
			list := value.List()
			n += list.Len()
			for i := range list.Len() {
				if field.Message() != nil {
					n += parts(list.Get(i).Message())
				}
			}
		case field.Message() != nil:
			n += 1 + parts(value.Message())
		}
		return true
	})
	return n
}

// FuzzEntry reads what a hostile guest says of a file: what is accepted cannot
// lead a copy by name elsewhere.
func FuzzEntry(f *testing.F) {
	f.Add("a", "/dir/a", "", int64(3), uint32(0o644), uint8(1), int64(0))
	f.Add("..", "/dir/..", "", int64(3), uint32(0o777777), uint8(2), int64(1<<60))
	f.Add("a/b", "/a/b", "/x", int64(-1), uint32(0), uint8(0), int64(-1))
	f.Add("/", "/", "../x", int64(0), uint32(0o4755), uint8(2), int64(1))
	f.Add("a\x00", "/a\x00", "\x00", int64(0), uint32(0), uint8(1), int64(1))
	f.Fuzz(func(t *testing.T, name, p, target string, size int64, mode uint32, kind uint8, seconds int64) {
		e := &filesystem.EntryInfo{
			Name: name, Path: p, Size: size, Mode: mode, Type: filesystem.FileType(kind % 4),
			ModifiedTime: &timestamppb.Timestamp{Seconds: seconds},
		}
		if target != "" {
			e.SymlinkTarget = &target
		}
		file, err := fileOf(e)
		if err != nil {
			if sandpit.CodeOf(err) != sandpit.Internal {
				t.Errorf("code %q", sandpit.CodeOf(err))
			}
			return
		}
		if !path.IsAbs(file.Path) || path.Clean(file.Path) != file.Path || strings.Contains(file.Path, "\x00") || file.Size < 0 {
			t.Errorf("accepted %+v", file)
		}
		if file.Path != "/" && path.Join("/dir", file.Name) != "/dir/"+file.Name {
			t.Errorf("accepted the name %q", file.Name)
		}
		if special := file.Mode &^ 0o777; special.Perm() != 0 || file.Mode.Perm() != file.Mode&0o777 || (special != 0 && special != special.Type()) {
			t.Errorf("accepted the mode %v", file.Mode)
		}
		if y := file.ModifiedAt.Year(); y < 1 || y > 9999 {
			t.Errorf("accepted the time %v", file.ModifiedAt)
		}
	})
}

// FuzzPlain makes a guest's words fit for an error.
func FuzzPlain(f *testing.F) {
	f.Add("no such file")
	f.Add("two\nlines\r\x1b[2Jand \u202e more\xff")
	f.Add(strings.Repeat("\u00fc", maxErrorText))
	f.Fuzz(func(t *testing.T, text string) {
		got := plainText(text)
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x1b\x00\x7f\u202e\u2028") {
			t.Errorf("plain(%q) = %q", text, got)
		}
		// A character that is replaced grows to three bytes at most.
		if len(got) > 3*maxErrorText+3 {
			t.Errorf("%d bytes", len(got))
		}
		if plainText(got) != got && len(got) <= maxErrorText {
			t.Errorf("plain(%q) = %q", got, plainText(got))
		}
	})
}
