package tool

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

const (
	// maxShownText is how much the editor shows of a file, in characters.
	maxShownText = 16_000
	// aroundEdit is how many lines are shown on each side of an edit.
	aroundEdit = 4
	// maxEditCount and maxEditBytes bound what can be undone, the latter in bytes.
	maxEditCount = 100
	maxEditBytes = 16 << 20
)

// editorTool is the editor that agents of several makers know, with lines counted from 1.
func editorTool() Tool {
	return Tool{
		Name: "str_replace_editor", Title: "View and edit files", Category: Compound, Hints: Hints{Destructive: true},
		Description: "View files with numbered lines, and directories; create files, replace a text that occurs exactly once, insert lines, " +
			"and undo the last edit of a file. Paths are absolute. What is longer than 16000 characters is clipped.",
		function: newFunction(strReplaceEditor),
	}
}

type editorInput struct {
	Command string  `json:"command" jsonschema:"what to do" enum:"view,create,str_replace,insert,undo_edit"`
	Path    string  `json:"path" jsonschema:"absolute path of a file, or of a directory to view"`
	Text    *string `json:"file_text,omitempty" jsonschema:"what the file shall hold, for create"`
	Old     string  `json:"old_str,omitempty" jsonschema:"the text to be replaced, for str_replace"`
	New     *string `json:"new_str,omitempty" jsonschema:"the text in its place, or for insert the lines to add; str_replace without it removes old_str"`
	Line    *int    `json:"insert_line,omitempty" jsonschema:"line after which to insert; 0 is before the first" range:"0,"`
	Range   []int   `json:"view_range,omitempty" jsonschema:"first and last line to view, counted from 1; -1 as the last is the end of the file"`
}

func strReplaceEditor(ctx context.Context, s *Session, in editorInput) (Result, error) {
	if !path.IsAbs(in.Path) {
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%.200q is no absolute path", in.Path), "did you mean "+s.absPath(in.Path)+"?")
	}
	in.Path = path.Clean(in.Path)
	if in.Command == "view" {
		return s.viewFile(ctx, in)
	}
	s.editing.Lock()
	defer s.editing.Unlock()
	switch in.Command {
	case "create":
		if in.Text == nil {
			return Result{}, errMissing("file_text", in.Command)
		}
		return s.createFile(ctx, in)
	case "undo_edit":
		return s.undoEdit(ctx, in.Path)
	}
	before, err := s.files.ReadText(ctx, in.Path)
	if err != nil {
		return Result{}, err
	}
	after, first, err := in.applyEdit(before)
	if err != nil {
		return Result{}, err
	}
	if err := s.saveEdit(ctx, in.Path, &before, after); err != nil {
		return Result{}, err
	}
	lines := splitLines(after)
	last := first + 2*aroundEdit + 1
	if in.New != nil {
		last += strings.Count(*in.New, "\n")
	}
	first, last = max(0, first), min(last, len(lines))
	return Result{
		Text: fmt.Sprintf("%s is edited. What it holds there now:\n%s", in.Path, clipText(numberLines(lines[first:last], first+1))),
		Data: editData{File: in.Path, Replaced: 1},
	}, nil
}

// applyEdit is what a text becomes, and the first line, counted from 0, that shows it.
func (in editorInput) applyEdit(text string) (after string, first int, err error) {
	if in.Command == "insert" {
		if in.Line == nil || in.New == nil {
			return "", 0, errMissing("insert_line and new_str", in.Command)
		}
		lines := splitLines(text)
		at := *in.Line
		if at > len(lines) {
			return "", 0, sandpit.Errorf(sandpit.Invalid, "there is no line %d: the file has %d", at, len(lines))
		}
		head := strings.Join(lines[:at], "")
		if head != "" && !strings.HasSuffix(head, "\n") {
			head += "\n"
		}
		added := *in.New
		if at < len(lines) && !strings.HasSuffix(added, "\n") {
			added += "\n"
		}
		return head + added + strings.Join(lines[at:], ""), at - aroundEdit, nil
	}
	if in.Old == "" {
		return "", 0, errMissing("old_str", in.Command)
	}
	switch count := strings.Count(text, in.Old); {
	case count == 0:
		return "", 0, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "old_str does not occur in %s", in.Path), "it must be exactly as in the file, spaces and tabs included")
	case count > 1:
		return "", 0, sandpit.WithHint(
			sandpit.Errorf(sandpit.Conflict, "old_str occurs %d times in %s, in the lines %s", count, in.Path, linesOf(text, in.Old)), "add more of what stands around it")
	}
	added := ""
	if in.New != nil {
		added = *in.New
	}
	before, _, _ := strings.Cut(text, in.Old)
	return strings.Replace(text, in.Old, added, 1), strings.Count(before, "\n") - aroundEdit, nil
}

func (s *Session) createFile(ctx context.Context, in editorInput) (Result, error) {
	exists, err := s.files.Exists(ctx, in.Path)
	if err != nil {
		return Result{}, err
	}
	if exists {
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.AlreadyExists, "%s is there already", in.Path), "str_replace and insert change it")
	}
	if err := s.saveEdit(ctx, in.Path, nil, *in.Text); err != nil {
		return Result{}, err
	}
	return Result{Text: in.Path + " is created", Data: writeData{File: in.Path, Bytes: len(*in.Text)}}, nil
}

// viewFile shows a file, or what is in a directory and in those below it.
func (s *Session) viewFile(ctx context.Context, in editorInput) (Result, error) {
	f, err := s.files.Stat(ctx, in.Path)
	if err != nil {
		return Result{}, err
	}
	if f.Mode.IsDir() {
		if len(in.Range) > 0 {
			return Result{}, sandpit.Errorf(sandpit.Invalid, "view_range is for files, and %s is a directory", in.Path)
		}
		r, err := listFiles(ctx, s, listInput{Path: in.Path, Recursive: true, Depth: 2, Sort: "name"})
		r.Text = clipText(r.Text)
		return r, err
	}
	text, err := s.files.ReadText(ctx, in.Path)
	if err != nil {
		return Result{}, err
	}
	lines := splitLines(text)
	first, last := 1, len(lines)
	if len(in.Range) > 0 {
		if len(in.Range) != 2 {
			return Result{}, sandpit.Errorf(sandpit.Invalid, "view_range: want two numbers")
		}
		first = in.Range[0]
		if in.Range[1] != -1 {
			last = in.Range[1]
		}
		if first < 1 || last < first || last > len(lines) {
			return Result{}, sandpit.Errorf(sandpit.Invalid, "there are no lines %d to %d: the file has %d", first, in.Range[1], len(lines))
		}
	}
	shown := "(empty)"
	if len(lines) > 0 {
		shown = clipText(numberLines(lines[first-1:last], first))
	}
	return Result{Text: shown, Data: readData{File: in.Path, Lines: len(lines), Start: first, End: last}}, nil
}

// splitLines returns the lines of a text with their ends.
func splitLines(text string) []string {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// numberLines are lines as cat -n shows them.
func numberLines(lines []string, first int) string {
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "%6d\t%s", first+i, line)
	}
	return b.String()
}

// clipText is as much of a text as the editor shows.
func clipText(text string) string {
	if utf8.RuneCountInString(text) <= maxShownText {
		return text
	}
	return string([]rune(text)[:maxShownText]) + "\n<response clipped> (only a part is shown: search with grep for the lines that matter, and view them with view_range)"
}

// fileEdit is one that can be undone.
type fileEdit struct {
	path   string
	before *string // nil: the file was not there
	after  [sha256.Size]byte
}

func (e fileEdit) size() int {
	if e.before == nil {
		return 0
	}
	return len(*e.before)
}

// saveEdit writes a file and remembers what it held. The caller holds s.editing.
func (s *Session) saveEdit(ctx context.Context, name string, before *string, after string) error {
	if err := s.files.WriteFile(ctx, name, strings.NewReader(after)); err != nil {
		return err
	}
	s.recordEdit(fileEdit{name, before, sha256.Sum256([]byte(after))})
	return nil
}

// recordEdit keeps an edit, in place of older ones if it must. The caller holds s.editing.
func (s *Session) recordEdit(e fileEdit) {
	size := e.size()
	for _, older := range s.edits {
		size += older.size()
	}
	for len(s.edits) >= maxEditCount || len(s.edits) > 0 && size > maxEditBytes {
		size -= s.edits[0].size()
		s.forgetEdit(0)
	}
	for s.memory.Reserve(int64(e.size())) != nil {
		if len(s.edits) == 0 {
			return // it cannot be undone
		}
		s.forgetEdit(0)
	}
	s.edits = append(s.edits, e)
}

// forgetEdit has an edit no longer be undone. The caller holds s.editing.
func (s *Session) forgetEdit(i int) {
	s.memory.Return(int64(s.edits[i].size()))
	s.edits = slices.Delete(s.edits, i, i+1)
}

// undoEdit takes the last edit of a file back, unless somebody else has changed the file since.
func (s *Session) undoEdit(ctx context.Context, name string) (Result, error) {
	last := len(s.edits) - 1
	for last >= 0 && s.edits[last].path != name {
		last--
	}
	if last < 0 {
		return Result{}, sandpit.Errorf(sandpit.NotFound, "no edit of %s is remembered", name)
	}
	e := s.edits[last]
	now, err := s.files.ReadFile(ctx, name)
	if err != nil {
		return Result{}, err
	}
	if sha256.Sum256(now) != e.after {
		return Result{}, sandpit.Errorf(sandpit.Conflict, "%s has changed since it was edited", name)
	}
	text := name + " is removed: it was not there before"
	if e.before == nil {
		err = s.files.Remove(ctx, name)
	} else {
		err = s.files.WriteFile(ctx, name, strings.NewReader(*e.before))
		text = "The last edit of " + name + " is undone. It holds now:\n" + clipText(numberLines(splitLines(*e.before), 1))
	}
	if err != nil {
		return Result{}, err
	}
	s.forgetEdit(last)
	return Result{Text: text}, nil
}
