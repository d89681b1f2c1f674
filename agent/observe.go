package agent

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

const (
	// minObservation is the least Options.MaxObservation.
	minObservation = 500
	// mostImages and maxImages bound the images of a result, the latter in bytes together.
	mostImages = 8
	maxImages  = 16 << 20
)

// observe returns the message with the result of a call: masked, bounded, and with a file in the
// sandbox for what does not fit.
func (a *Agent) observe(ctx context.Context, s *tool.Session, c model.ToolCall, r tool.Result) model.Message {
	m := model.Message{Role: model.RoleTool, CallID: c.ID, Failed: r.Failed, Text: a.masks.mask(strings.ToValidUTF8(r.Text, "?"))}
	size := 0
	for _, i := range r.Images {
		if size += len(i.Data); len(m.Images) == mostImages || size > maxImages {
			m.Text += "\n(further images are left out)"
			break
		}
		m.Images = append(m.Images, model.Image{MediaType: i.MIME, Data: i.Data})
	}
	if m.Text == "" && len(m.Images) == 0 {
		m.Text = "(no output)"
	}
	n := utf8.RuneCountInString(m.Text)
	if n <= a.o.MaxObservation {
		return m
	}
	note := fmt.Sprintf("\n(%d characters in total)", n)
	if file := r.SavedTo; file != "" {
		note = "\n(the complete output is in the file " + file + ")"
	} else if s != nil {
		file, err := s.SaveOutput(ctx, c.Name, m.Text)
		note = fmt.Sprintf("\n(%d characters in total; the complete output is in the file %s)", n, file)
		if err != nil {
			note = fmt.Sprintf("\n(%d characters in total; the complete output could not be saved: %.200v)", n, err)
		}
	}
	m.Text = cutMiddle(m.Text, a.o.MaxObservation-utf8.RuneCountInString(note)) + note
	return m
}

// cutMiddle returns the beginning and the end of a text, of at most limit characters in total.
func cutMiddle(text string, limit int) string {
	const mark = "\n[…]\n"
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	room := max(limit-len([]rune(mark)), 0)
	end := room / 2
	return string(runes[:room-end]) + mark + string(runes[len(runes)-end:])
}
