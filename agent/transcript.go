package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// transcriptVersion is the version of the lines.
const transcriptVersion = 1

// Types of lines.
const (
	entryStart   = "start"   // an agent begins, or continues the transcript
	entryMessage = "message" // a message of the conversation; one of the model before its calls run
	entryCompact = "compact" // the conversation was made shorter
	entrySandbox = "sandbox" // a sandbox was opened
	entryLink    = "link"    // a port can be opened; the URL is without its ticket
	entryEnd     = "end"     // a task ended
)

// entry is a line of a transcript.
type entry struct {
	Type    string    `json:"type"`
	At      time.Time `json:"at"`
	Version int       `json:"version,omitempty"`
	Model   string    `json:"model,omitempty"`
	// Task is true for a message that is a task.
	Task    bool           `json:"task,omitempty"`
	Message *model.Message `json:"message,omitempty"`
	Usage   *model.Usage   `json:"usage,omitempty"`
	// Stop is why a response ended, unless its calls say it.
	Stop       model.StopReason `json:"stop,omitempty"`
	Compaction *compaction      `json:"compaction,omitempty"`
	Sandbox    sandpit.ID       `json:"sandbox,omitempty"`
	Link       *Link            `json:"link,omitempty"`
	Outcome    *Outcome         `json:"outcome,omitempty"`
}

// errTranscript marks an error of writing the transcript.
var errTranscript = errors.New("write the transcript")

// recorder writes a transcript. All methods may be called concurrently.
type recorder struct {
	out   io.Writer // nil: there is no transcript
	masks *masks

	mu     sync.Mutex
	failed error
}

// write writes a line, without secrets. After an error all further lines fail, because a transcript
// with a gap would be wrong.
func (r *recorder) write(e entry) error {
	if r.out == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return r.failed
	}
	e.At = time.Now().UTC()
	line, err := json.Marshal(r.masks.maskEntry(e))
	if err == nil {
		_, err = r.out.Write(append(line, '\n'))
	}
	if err != nil {
		r.failed = fmt.Errorf("%w: %w", errTranscript, err)
	}
	return r.failed
}

// Transcript is what was read of a transcript.
type Transcript struct {
	conversation conversation
	responses    []model.Response
	usage        model.Usage
	steps        int // of the last task
	outcome      *Outcome
	sandbox      sandpit.ID
	length       int64
}

const (
	// maxLine bounds a line of a transcript, maxTranscript all lines, in bytes.
	maxLine       = 64 << 20
	maxTranscript = 4 << 30
)

// ReadTranscript reads a transcript. A last line that is incomplete, because the program was killed,
// is ignored.
//
// Invalid: it is not a transcript, or of another version.
func ReadTranscript(r io.Reader) (*Transcript, error) {
	t := &Transcript{}
	lines := bufio.NewReaderSize(io.LimitReader(r, maxTranscript), 64<<10)
	for number := 1; ; number++ {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the transcript: line %d: %w", number, err)
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, sandpit.Errorf(sandpit.Invalid, "read the transcript: line %d: %w", number, err)
		}
		if number == 1 && e.Type != entryStart {
			return nil, sandpit.Errorf(sandpit.Invalid, "read the transcript: the first line has the type %.50q, not %q", e.Type, entryStart)
		}
		if err := t.add(e); err != nil {
			return nil, fmt.Errorf("read the transcript: line %d: %w", number, err)
		}
		t.length += int64(len(line))
	}
	t.conversation.sortResults()
	if len(t.conversation.messages) == 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "read the transcript: it has no messages")
	}
	return t, nil
}

// readLine returns a complete line, or io.EOF.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxLine {
			return nil, sandpit.Errorf(sandpit.Invalid, "it has more than %d bytes", maxLine)
		}
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// add applies a line.
func (t *Transcript) add(e entry) error {
	switch e.Type {
	case entryStart:
		if e.Version != transcriptVersion {
			return sandpit.Errorf(sandpit.Invalid, "version %d is not supported; want %d", e.Version, transcriptVersion)
		}
	case entryMessage:
		return t.addMessage(e)
	case entryCompact:
		t.conversation.sortResults()
		if e.Compaction != nil {
			t.conversation.apply(*e.Compaction)
		}
	case entrySandbox:
		t.sandbox = e.Sandbox
	case entryEnd:
		t.outcome = e.Outcome
	}
	return nil // lines of later versions are for people
}

func (t *Transcript) addMessage(e entry) error {
	m := e.Message
	if m == nil || m.Role != model.RoleUser && m.Role != model.RoleAssistant && m.Role != model.RoleTool {
		return sandpit.Errorf(sandpit.Invalid, "it has no valid message")
	}
	if len(t.conversation.messages) == 0 && m.Role != model.RoleUser {
		return sandpit.Errorf(sandpit.Invalid, "the first message is of the role %.20q, not of the user", string(m.Role))
	}
	if m.Role != model.RoleTool {
		t.conversation.sortResults()
	}
	t.conversation.add(*m)
	t.outcome = nil
	if e.Task {
		t.steps = 0
	}
	if m.Role == model.RoleAssistant {
		t.steps++
		response := model.Response{Message: *m, Stop: usualStop(*m)}
		if e.Stop != "" {
			response.Stop = e.Stop
		}
		t.conversation.stop = response.Stop
		if e.Usage != nil {
			response.Usage = *e.Usage
			t.usage = t.usage.Add(*e.Usage)
		}
		t.responses = append(t.responses, response)
	}
	return nil
}

// usualStop returns why a response ends that nothing has cut off.
func usualStop(m model.Message) model.StopReason {
	if len(m.Calls) > 0 {
		return model.StopTools
	}
	return model.StopEnd
}

// Messages returns the conversation at the end of the transcript.
func (t *Transcript) Messages() []model.Message { return t.conversation.toRequest() }

// Responses returns all responses of the model, oldest first: a model that returns them repeats what
// the transcript describes.
func (t *Transcript) Responses() []model.Response { return t.responses }

// SandboxID returns the ID of the last sandbox, or "" if there was none or it had no ID. It may have
// ended.
func (t *Transcript) SandboxID() sandpit.ID { return t.sandbox }

// Length returns the size of the complete lines, in bytes. A file is cut to it before lines are added.
func (t *Transcript) Length() int64 { return t.length }

// Outcome returns how the last task ended, or false if it was interrupted without an end.
func (t *Transcript) Outcome() (Outcome, bool) {
	if t.outcome == nil {
		return Outcome{}, false
	}
	return *t.outcome, true
}

// resumeFrom takes over the conversation of a transcript, and what it took.
func (a *Agent) resumeFrom(t *Transcript) {
	a.conversation = t.conversation
	a.conversation.messages = append([]model.Message(nil), t.conversation.messages...)
	a.step.Store(int64(t.steps))
	a.ended = t.outcome != nil && t.outcome.Reason.state() == StateFinished
	a.place.earlier = t.sandbox
	a.spent = Spent{Usage: t.usage, Cost: a.o.Price.cost(t.usage)}
	for _, m := range a.conversation.messages {
		a.masks.maskCalls(m.Calls)
	}
}
