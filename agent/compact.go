package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

const (
	// mostCompactions limits how often one request is made shorter after the model refused it.
	mostCompactions = 4
	// bytesPerToken and imageTokens estimate tokens. They are low for English, so that the estimate
	// is rather too high.
	bytesPerToken = 3
	imageTokens   = 1600
	// minRatio and maxRatio bound what a vendor's count changes in the estimate: it may be false.
	minRatio = 0.7
	maxRatio = 3
	// fullPart of the window makes the conversation shorter, until it takes keptPart.
	fullPart = 0.85
	keptPart = 0.5
	// maxReserve bounds the tokens that are reserved for a response of unknown length.
	maxReserve = 8192
	// maxNote bounds the note about what was left out, in bytes; maxNoted each line.
	maxNote  = 6_000
	maxNoted = 200
	// maxNotedTask bounds each task in the note.
	maxNotedTask = 1_500
	// shortText is the least bound for texts of results.
	shortText = 500
)

// compaction makes a conversation shorter. It is in the transcript, so that a resumed agent has the
// same conversation.
type compaction struct {
	// LeftOut is the number of messages after the first that are left out.
	LeftOut int `json:"left_out,omitempty"`
	// Note stands for them.
	Note string `json:"note,omitempty"`
	// MaxText, if not 0, bounds the texts of results and removes their images.
	MaxText int `json:"max_text,omitempty"`
}

// apply carries out a compaction.
func (c *conversation) apply(k compaction) {
	if len(c.messages) == 0 {
		return
	}
	end := 1 + min(max(k.LeftOut, 0), len(c.messages)-1)
	c.messages = slices.Concat(c.messages[:1], c.messages[end:])
	if k.Note != "" {
		c.note = k.Note
	}
	if k.MaxText <= 0 {
		return
	}
	for i, m := range c.messages {
		if m.Role == model.RoleTool {
			c.messages[i].Text, c.messages[i].Images = cutMiddle(m.Text, k.MaxText), nil
		}
	}
}

// tokensOf estimates the tokens of a message.
func tokensOf(m model.Message) int {
	size := len(m.Text) + len(m.Opaque)
	for _, c := range m.Calls {
		size += len(c.ID) + len(c.Name) + len(c.Arguments) + 16
	}
	return 8 + size/bytesPerToken + len(m.Images)*imageTokens
}

// estimate returns the estimated tokens of the next request.
func (a *Agent) estimate() int {
	n := (len(a.systemText()) + a.tools.size + len(a.conversation.note)) / bytesPerToken
	for _, m := range a.conversation.messages {
		n += tokensOf(m)
	}
	return n
}

// calibrate compares an estimate with what the vendor counted.
func (c *conversation) calibrate(estimated, counted int) {
	if estimated > 0 && counted > 0 {
		c.ratio = min(max(float64(counted)/float64(estimated), minRatio), maxRatio)
	}
}

// room returns the tokens that a request may have, or 0 if that is unknown.
func (a *Agent) room() int {
	window := a.o.Model.Window()
	if window <= 0 {
		return 0
	}
	reserve := a.o.MaxTokens
	if reserve == 0 {
		reserve = min(maxReserve, window/4)
	}
	return max(window-reserve, window/2)
}

// compactBefore makes the conversation shorter if it nearly fills the window.
func (a *Agent) compactBefore() error {
	room, ratio := a.room(), a.conversation.ratio
	if ratio == 0 {
		ratio = 1
	}
	need := float64(a.estimate()) * ratio
	if room == 0 || need <= fullPart*float64(room) {
		return nil
	}
	_, err := a.compactTo(int(keptPart*float64(room)/ratio), 0)
	return err
}

// compactAfterRefusal makes the conversation shorter after the model refused it as too long. It
// reports whether it could.
func (a *Agent) compactAfterRefusal(attempt int) (bool, error) {
	return a.compactTo(a.estimate()/2, attempt)
}

// compactTo makes the conversation shorter, to about a number of estimated tokens: it keeps the first
// task and the last turns, a turn being a message with the results of its calls. If the last turn alone
// is too long, its results are cut.
func (a *Agent) compactTo(tokens, attempt int) (bool, error) {
	c := &a.conversation
	overhead := a.estimate()
	for _, m := range c.messages[1:] {
		overhead -= tokensOf(m)
	}
	first, kept := len(c.messages), 0
	for i := len(c.messages) - 1; i >= 1; i-- {
		kept += tokensOf(c.messages[i])
		if overhead+kept > tokens && first < len(c.messages) {
			break
		}
		if c.messages[i].Role != model.RoleTool { // the begin of a turn
			first = i
		}
	}
	k := compaction{LeftOut: first - 1}
	if k.LeftOut > 0 {
		k.Note = c.newNote(c.messages[1:first])
	}
	last := 0
	for _, m := range c.messages[first:] {
		last += tokensOf(m)
	}
	if overhead+last > tokens || attempt > 0 {
		results := max(1, len(slices.DeleteFunc(slices.Clone(c.messages[first:]), func(m model.Message) bool { return m.Role != model.RoleTool })))
		k.MaxText = max(max(tokens-overhead, 0)*bytesPerToken/(2*results)>>attempt, shortText)
	}
	if k.LeftOut == 0 && k.MaxText == 0 {
		return false, nil
	}
	before := a.estimate()
	if err := a.recorder.write(entry{Type: entryCompact, Compaction: &k}); err != nil {
		return false, err
	}
	c.apply(k)
	return a.estimate() < before, nil
}

// noteTitle begins a note.
const noteTitle = "[Earlier turns were left out to make room. They were, oldest first:"

// newNote returns a note about messages that are left out, after those of the earlier note.
func (c *conversation) newNote(left []model.Message) string {
	failed := map[string]bool{}
	for _, m := range left {
		if m.Role == model.RoleTool && m.Failed {
			failed[m.CallID] = true
		}
	}
	var lines []string
	if c.note != "" {
		lines = strings.Split(strings.TrimSuffix(strings.TrimPrefix(c.note, noteTitle+"\n"), "]"), "\n")
	}
	for _, m := range left {
		switch {
		case m.Role == model.RoleUser && !isPrompt(m.Text):
			lines = append(lines, "user: "+oneLine(m.Text, maxNotedTask))
		case m.Role == model.RoleAssistant && m.Text != "":
			lines = append(lines, "you: "+oneLine(m.Text, maxNoted))
		}
		for _, call := range m.Calls {
			line := fmt.Sprintf("call %s %s", call.Name, oneLine(call.Arguments, maxNoted))
			if failed[call.ID] {
				line += " (failed)"
			}
			lines = append(lines, line)
		}
	}
	size := 0
	for i, line := range slices.Backward(lines) {
		if size += len(line) + 1; size > maxNote {
			lines = append([]string{"(…)"}, lines[i+1:]...)
			break
		}
	}
	return noteTitle + "\n" + strings.Join(lines, "\n") + "]"
}

// isPrompt reports whether a message is one of the loop.
func isPrompt(text string) bool {
	return text == promptContinue || text == promptCutOff || text == promptStuck
}

// oneLine returns the beginning of a text in one line.
func oneLine(text string, limit int) string {
	return textlen.Shorten(strings.Join(strings.Fields(text), " "), limit)
}
