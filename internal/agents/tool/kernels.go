package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	_ "image/jpeg" // what kernels draw
	_ "image/png"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// kernels are the interpreters of a session. They run as the session's user and keep variables.
type kernels struct {
	session     *Session
	remote      *interpreter.Remote
	idleTimeout time.Duration

	mu   sync.Mutex
	used map[string]time.Time // last use of each context
}

func newKernels(s *Session) *kernels {
	o := interpreter.RemoteOptions{User: s.o.User, Dir: s.o.Dir, Environ: s.environment}
	return &kernels{session: s, remote: interpreter.NewRemote(s.guest, o), idleTimeout: kernelIdleTimeout, used: map[string]time.Time{}}
}

func (k *kernels) close() error { return k.remote.Close() }

// Bounds of the results of code.
const (
	maxResultCount = 50
	// maxResults bounds all representations of results together, in bytes.
	maxResults    = 4 * maxText
	maxImageCount = 8
	maxImage      = 10 << 20 // bytes
	maxImages     = 20 << 20 // bytes, all together
	maxSide       = 8192     // pixels
)

type cellData struct {
	Language string       `json:"language"`
	Session  string       `json:"session_id"`
	Stdout   string       `json:"stdout"`
	Stderr   string       `json:"stderr"`
	Results  []cellResult `json:"results"`
	// Error is the exception of failed code.
	Error    *cellError `json:"error,omitempty"`
	Count    int        `json:"execution_count"`
	TimedOut bool       `json:"timed_out,omitempty"`
	Duration float64    `json:"duration_seconds"`
}

// cellResult is a displayed value; images are in Result.Images.
type cellResult struct {
	Text     string          `json:"text,omitempty"`
	HTML     string          `json:"html,omitempty"`
	Markdown string          `json:"markdown,omitempty"`
	LaTeX    string          `json:"latex,omitempty"`
	SVG      string          `json:"svg,omitempty"`
	JSON     json.RawMessage `json:"json,omitempty"`
	Main     bool            `json:"is_main_result"` // the value of the last expression, not something displayed
}

type cellError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// cellOutput collects the output of a run.
type cellOutput struct {
	session        *Session
	data           cellData
	printed, shown *workspace.Window // as text; their relative order is unknown, because they arrive separately
	stdout, stderr *workspace.Window
	images         []Image
	imageBytes     int
	results        int // bytes
	omitted        int // results
}

func newCellOutput(ctx context.Context, s *Session, r cellRequest) *cellOutput {
	window := func() *workspace.Window { return workspace.NewWindowOf(ctx, maxCommandOutput, outputCost) }
	return &cellOutput{
		session: s,
		data:    cellData{Language: r.language, Session: r.session, Results: []cellResult{}},
		printed: window(), shown: window(), stdout: window(), stderr: window(),
	}
}

// addLine adds one or several lines to the shown text.
func (o *cellOutput) addLine(text string) {
	_, _ = o.shown.Write([]byte(strings.TrimRight(text, "\n") + "\n")) // never fails
}

// handleEvent handles one event.
func (o *cellOutput) handleEvent(e interpreter.Event) error {
	switch e := e.(type) {
	case interpreter.Output:
		stream := o.stdout
		if e.Stream == interpreter.Stderr {
			stream = o.stderr
		}
		_, _ = stream.Write([]byte(e.Text)) // never fails
		_, _ = o.printed.Write([]byte(e.Text))
	case interpreter.Result:
		o.addResult(e)
	case interpreter.Failure:
		o.data.Error = &cellError{Name: o.session.secretSet().tailText(e.Name), Value: o.session.secretSet().tailText(e.Value), Traceback: o.session.secretSet().tailText(e.Traceback)}
	case interpreter.Count:
		o.data.Count = e.Number
	}
	return nil
}

func (o *cellOutput) addResult(e interpreter.Result) {
	r := cellResult{
		Text: textOf(e.Text), HTML: textOf(e.HTML), Markdown: textOf(e.Markdown), LaTeX: textOf(e.LaTeX), SVG: textOf(e.SVG), JSON: e.JSON, Main: e.Main,
	}
	shown := r.Text
	if shown == "" {
		shown = r.Markdown
	}
	if shown == "" {
		shown = r.description()
	}
	if shown != "" {
		o.addLine(shown)
	}
	o.addImage("image/png", e.PNG)
	o.addImage("image/jpeg", e.JPEG)
	size := len(r.Text) + len(r.HTML) + len(r.Markdown) + len(r.LaTeX) + len(r.SVG) + len(r.JSON)
	if len(o.data.Results) == maxResultCount || o.results+size > maxResults {
		o.omitted++
		return
	}
	o.results += size
	o.data.Results = append(o.data.Results, r)
}

// textOf returns a representation that is text.
func textOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return "" // interpreters encode text as JSON strings
	}
	return text
}

// description describes a result without text.
func (r cellResult) description() string {
	for _, kind := range []struct {
		name string
		size int
	}{{"HTML", len(r.HTML)}, {"LaTeX", len(r.LaTeX)}, {"SVG", len(r.SVG)}, {"JSON", len(r.JSON)}} {
		if kind.size > 0 {
			return fmt.Sprintf("[%s of %d bytes]", kind.name, kind.size)
		}
	}
	return ""
}

// addImage adds an image if it is valid and within the limits.
func (o *cellOutput) addImage(mime string, raw json.RawMessage) {
	if len(raw) == 0 {
		return
	}
	data, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(textOf(raw), "\n", ""))
	if err == nil {
		err = checkImage(mime, data)
	}
	switch {
	case err != nil:
		o.addLine(fmt.Sprintf("[an image was left out: %v]", err))
	case len(o.images) == maxImageCount || o.imageBytes+len(data) > maxImages:
		o.addLine(fmt.Sprintf("[an image was left out: the limit is %d images of %d MiB together]", maxImageCount, maxImages>>20))
	default:
		o.addLine(fmt.Sprintf("[image %d]", len(o.images)+1))
		o.imageBytes += len(data)
		o.images = append(o.images, Image{MIME: mime, Data: data})
	}
}

// checkImage returns an error if data is not an image of a type, or is too large.
func checkImage(mime string, data []byte) error {
	if len(data) > maxImage {
		return fmt.Errorf("%d bytes, more than %d", len(data), maxImage)
	}
	about, kind, err := image.DecodeConfig(bytes.NewReader(data))
	switch {
	case err != nil || "image/"+kind != mime:
		return fmt.Errorf("not a valid %s", mime)
	case about.Width > maxSide || about.Height > maxSide:
		return fmt.Errorf("%d × %d pixels, more than %d a side", about.Width, about.Height, maxSide)
	}
	return nil
}

// toResult returns the result of the run.
func (o *cellOutput) toResult() Result {
	if o.omitted > 0 {
		o.addLine(fmt.Sprintf("(%d more results were left out of the data)", o.omitted))
	}
	o.data.Stdout, o.data.Stderr = o.session.secretSet().shortenMiddle(o.stdout.String()), o.session.secretSet().shortenMiddle(o.stderr.String())
	e := o.data.Error
	if e != nil {
		said := e.Traceback
		if !strings.Contains(said, e.Name) {
			said += "\n" + strings.TrimSuffix(e.Name+": "+e.Value, ": ")
		}
		o.addLine(strings.Trim(said, "\n"))
	}
	text := o.printed.String()
	if shown := o.shown.String(); shown != "" {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += strings.TrimSuffix(shown, "\n")
	}
	if strings.TrimSpace(text) == "" {
		text = noOutput
	}
	switch {
	case o.data.TimedOut && e != nil && e.Name == interpreter.FailKernel:
		text = "[FAILED (timeout; the variables are lost)]\n" + text
	case o.data.TimedOut:
		text = "[FAILED (timeout; interrupted, the variables are kept)]\n" + text
	case e != nil:
		text = "[FAILED (" + e.Name + ")]\n" + text
	}
	return Result{Text: text, Data: o.data, Images: o.images, Failed: e != nil || o.data.TimedOut}
}
