package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

func fileTools() []Tool {
	file := map[string]string{"path": "file", "file_path": "file", "filename": "file"}
	return []Tool{
		{
			Name: "file_read", Title: "Read a file", Category: File, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "Read a text file of the sandbox, all of it or some lines.",
			function:    newFunction(readFile), synonyms: file,
		}, {
			Name: "file_write", Title: "Write a file", Category: File, Hints: Hints{Destructive: true, Idempotent: true},
			Description: "Write a file, replacing what it held or adding to it. Missing directories are made.",
			function:    newFunction(writeFile), synonyms: file,
		}, {
			Name: "file_edit", Title: "Edit a file", Category: File, Hints: Hints{Destructive: true},
			Description: "Replace a piece of text in a file. It must occur exactly once, unless all occurrences shall be replaced.",
			function:    newFunction(editFile), synonyms: file,
		}, {
			Name: "file_delete", Title: "Delete a file", Category: File, Hints: Hints{Destructive: true, Idempotent: true},
			Description: "Delete a file, or a directory with all that is in it.",
			function:    newFunction(deleteFile), synonyms: map[string]string{"file": "path", "file_path": "path"},
		}, {
			Name: "file_list", Title: "List a directory", Category: File, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "List what is in a directory, with types and sizes.",
			function:    newFunction(listFiles), synonyms: map[string]string{"directory": "path", "dir": "path"},
		}, {
			Name: "file_download", Title: "Get a file", Category: File, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "Get what a file holds: as text, or in Base64 after the mark [BASE64] if it is not text.",
			function:    newFunction(downloadFile), synonyms: map[string]string{"file": "path", "file_path": "path"},
		}, {
			Name: "file_upload", Title: "Put a file", Category: File, Hints: Hints{Destructive: true, Idempotent: true},
			Description: "Put a file into the sandbox whose contents are given in Base64, or as text.",
			function:    newFunction(uploadFile), synonyms: map[string]string{"file": "path", "file_path": "path"},
		},
	}
}

type readInput struct {
	File  string `json:"file" jsonschema:"path of the file, relative to the working directory or absolute"`
	Start *int   `json:"start_line,omitempty" jsonschema:"first line, counted from 0" range:"0,"`
	End   *int   `json:"end_line,omitempty" jsonschema:"line before which to stop, counted from 0" range:"0,"`
	Sudo  bool   `json:"sudo,omitempty" jsonschema:"read as root of the sandbox" default:"false"`
}

type readData struct {
	File  string `json:"file"`
	Lines int    `json:"lines"` // of the whole file
	Start int    `json:"start_line"`
	End   int    `json:"end_line"`
}

func readFile(ctx context.Context, s *Session, in readInput) (Result, error) {
	files, err := s.filesAs(in.Sudo)
	if err != nil {
		return Result{}, err
	}
	data, err := files.ReadFile(ctx, in.File)
	if err != nil {
		return Result{}, err
	}
	if !isText(data) {
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s is not a text file", in.File),
			firstAllowed(ctx, "file_download gives it in Base64", "a command can show it: base64, file, strings"))
	}
	lines := splitLines(string(data))
	start, end := 0, len(lines)
	if in.Start != nil {
		start = *in.Start
	}
	if in.End != nil {
		end = min(*in.End, len(lines))
	}
	if start > len(lines) || start > end {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "there are no lines %d to %d: the file has %d", start, end, len(lines))
	}
	text := strings.Join(lines[start:end], "")
	if text == "" {
		text = "(empty)"
	}
	return Result{Text: text, Data: readData{File: s.absPath(in.File), Lines: len(lines), Start: start, End: end}}, nil
}

func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }

type writeInput struct {
	File     string `json:"file" jsonschema:"path of the file, relative to the working directory or absolute"`
	Content  string `json:"content" jsonschema:"what the file shall hold"`
	Encoding string `json:"encoding,omitempty" jsonschema:"how content is written" enum:"utf-8,base64" default:"utf-8"`
	Append   bool   `json:"append,omitempty" jsonschema:"add to the end of the file" default:"false"`
	Sudo     bool   `json:"sudo,omitempty" jsonschema:"write as root of the sandbox" default:"false"`
}

type writeData struct {
	File  string `json:"file"`
	Bytes int    `json:"bytes"`
}

func writeFile(ctx context.Context, s *Session, in writeInput) (Result, error) {
	content, err := decodeContent(in.Content, in.Encoding == "base64")
	if err != nil {
		return Result{}, err
	}
	files, err := s.filesAs(in.Sudo)
	if err != nil {
		return Result{}, err
	}
	all := content
	if in.Append {
		s.editing.Lock()
		defer s.editing.Unlock()
		old, err := files.ReadFile(ctx, in.File)
		if err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
			return Result{}, err
		}
		all = slices.Concat(old, content)
	}
	if err := files.WriteFile(ctx, in.File, bytes.NewReader(all)); err != nil {
		return Result{}, err
	}
	return Result{
		Text: fmt.Sprintf("Successfully wrote %d bytes to %s", len(content), in.File),
		Data: writeData{File: s.absPath(in.File), Bytes: len(content)},
	}, nil
}

func decodeContent(content string, base bool) ([]byte, error) {
	if !base {
		return []byte(content), nil
	}
	data, err := base64.StdEncoding.DecodeString(content)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "the content is not Base64: %w", err)
	}
	return data, nil
}

type editInput struct {
	File string `json:"file" jsonschema:"path of the file, relative to the working directory or absolute"`
	Old  string `json:"old_str" jsonschema:"the text to be replaced, exactly as it stands in the file"`
	New  string `json:"new_str" jsonschema:"the text in its place; empty removes it"`
	All  bool   `json:"replace_all,omitempty" jsonschema:"replace every occurrence" default:"false"`
	Sudo bool   `json:"sudo,omitempty" jsonschema:"edit as root of the sandbox" default:"false"`
}

type editData struct {
	File     string `json:"file"`
	Replaced int    `json:"replaced_count"`
}

func editFile(ctx context.Context, s *Session, in editInput) (Result, error) {
	if in.Old == "" {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "old_str is empty")
	}
	files, err := s.filesAs(in.Sudo)
	if err != nil {
		return Result{}, err
	}
	s.editing.Lock()
	defer s.editing.Unlock()
	text, err := files.ReadText(ctx, in.File)
	if err != nil {
		return Result{}, err
	}
	count := strings.Count(text, in.Old)
	switch {
	case count == 0:
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "old_str does not occur in %s", in.File),
			"it must be exactly as in the file, spaces and tabs included")
	case count > 1 && !in.All:
		return Result{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Conflict, "old_str occurs %d times in %s, in the lines %s", count, in.File, linesOf(text, in.Old)),
			"add more of what stands around it, or replace all")
	}
	if err := files.WriteFile(ctx, in.File, strings.NewReader(strings.ReplaceAll(text, in.Old, in.New))); err != nil {
		return Result{}, err
	}
	return Result{
		Text: fmt.Sprintf("Replaced %d in %s", count, in.File),
		Data: editData{File: s.absPath(in.File), Replaced: count},
	}, nil
}

// linesOf tells in which lines, counted from 1, a piece begins; at most 20 of them.
func linesOf(text, piece string) string {
	var lines []string
	line, rest := 1, text
	for len(lines) < 20 {
		before, after, found := strings.Cut(rest, piece)
		if !found {
			return strings.Join(lines, ", ")
		}
		line += strings.Count(before, "\n")
		lines = append(lines, strconv.Itoa(line))
		line += strings.Count(piece, "\n")
		rest = after
	}
	return strings.Join(lines, ", ") + " and more"
}

type deleteInput struct {
	Path      string `json:"path" jsonschema:"path of the file or directory"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"delete a directory with all that is in it" default:"false"`
}

func deleteFile(ctx context.Context, s *Session, in deleteInput) (Result, error) {
	p := s.absPath(in.Path)
	if p == "/" || p == s.o.Dir || strings.HasPrefix(s.o.Dir, p+"/") {
		return Result{}, sandpit.Errorf(sandpit.PermissionDenied, "%s is the working directory, or holds it", in.Path)
	}
	f, err := s.files.Stat(ctx, p)
	if err != nil {
		return Result{}, err
	}
	if f.Mode.IsDir() && !in.Recursive {
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "%s is a directory", in.Path), "say recursive to delete it with all that is in it")
	}
	if err := s.files.Remove(ctx, p); err != nil {
		return Result{}, err
	}
	return Result{Text: "Deleted " + in.Path}, nil
}

type listInput struct {
	Path      string `json:"path,omitempty" jsonschema:"the directory" default:"."`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"list the directories below too" default:"false"`
	Hidden    bool   `json:"show_hidden,omitempty" jsonschema:"list names that begin with a dot" default:"false"`
	Depth     int    `json:"max_depth,omitempty" jsonschema:"how many directories deep, if recursive" default:"3" range:"1,20"`
	Sort      string `json:"sort_by,omitempty" jsonschema:"the order" enum:"name,size,modified,type" default:"name"`
}

type listData struct {
	Path  string      `json:"path"`
	Files []fileEntry `json:"files"`
	Total int         `json:"total"`
}

type fileEntry struct {
	Name     string `json:"name"` // relative to the directory
	Type     string `json:"type"` // file, directory, link or other
	Size     int64  `json:"size"`
	Modified string `json:"modified"`
}

// maxEntries bounds what a list tells.
const maxEntries = 2000

func listFiles(ctx context.Context, s *Session, in listInput) (Result, error) {
	depth := 1
	if in.Recursive {
		depth = in.Depth
	}
	dir := s.absPath(in.Path)
	found, err := s.files.ListDir(ctx, dir, depth)
	if err != nil {
		return Result{}, err
	}
	data := listData{Path: dir, Files: []fileEntry{}}
	for _, f := range found {
		name := strings.TrimPrefix(strings.TrimPrefix(f.Path, dir), "/")
		if !in.Hidden && slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return strings.HasPrefix(part, ".") }) {
			continue
		}
		data.Total++
		data.Files = append(data.Files, fileEntry{name, typeOf(f), f.Size, f.ModifiedAt.UTC().Format("2006-01-02T15:04:05Z")})
	}
	sortEntries(data.Files, in.Sort)
	data.Files = data.Files[:min(len(data.Files), maxEntries)]
	return Result{Text: data.toText(), Data: data}, nil
}

func typeOf(f sandpit.File) string {
	switch {
	case f.LinkTarget != "":
		return "link"
	case f.Mode.IsDir():
		return "directory"
	case f.Mode.IsRegular():
		return "file"
	}
	return "other"
}

func sortEntries(entries []fileEntry, by string) {
	slices.SortStableFunc(entries, func(a, b fileEntry) int {
		c := 0
		switch by {
		case "size":
			c = int(min(max(b.Size-a.Size, -1), 1))
		case "modified":
			c = strings.Compare(b.Modified, a.Modified)
		case "type":
			c = strings.Compare(a.Type, b.Type)
		}
		if c == 0 {
			c = strings.Compare(a.Name, b.Name)
		}
		return c
	})
}

func (d listData) toText() string {
	var b strings.Builder
	for _, f := range d.Files {
		switch f.Type {
		case "directory":
			fmt.Fprintf(&b, "%s/\n", f.Name)
		case "file":
			fmt.Fprintf(&b, "%s  %d bytes\n", f.Name, f.Size)
		default:
			fmt.Fprintf(&b, "%s  (%s)\n", f.Name, f.Type)
		}
	}
	if d.Total == 0 {
		return path.Base(d.Path) + " is empty"
	}
	fmt.Fprintf(&b, "%d in all", d.Total)
	return b.String()
}

type pathInput struct {
	Path string `json:"path" jsonschema:"path of the file"`
}

type downloadData struct {
	Path     string `json:"path"`
	Bytes    int    `json:"bytes"`
	Encoding string `json:"encoding"`
}

func downloadFile(ctx context.Context, s *Session, in pathInput) (Result, error) {
	data, err := s.files.ReadFile(ctx, in.Path)
	if err != nil {
		return Result{}, err
	}
	told := downloadData{Path: s.absPath(in.Path), Bytes: len(data), Encoding: "utf-8"}
	if isText(data) {
		return Result{Text: string(data), Data: told}, nil
	}
	told.Encoding = "base64"
	if encoded := base64.StdEncoding.EncodedLen(len(data)); encoded > maxText {
		return Result{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "%s has %d bytes and is not text: a tool hands out at most %d", in.Path, len(data), maxText/4*3),
			"let a command look at it inside, or copy it out with sandpit cp")
	}
	return Result{Text: "[BASE64]" + base64.StdEncoding.EncodeToString(data), Data: told}, nil
}

type uploadInput struct {
	Path    string `json:"path" jsonschema:"where to put it"`
	Content string `json:"content" jsonschema:"what the file holds"`
	// Base64 is what binary files need.
	Encoding string `json:"encoding,omitempty" jsonschema:"how content is written" enum:"utf-8,base64" default:"base64"`
}

func uploadFile(ctx context.Context, s *Session, in uploadInput) (Result, error) {
	return writeFile(ctx, s, writeInput{File: in.Path, Content: in.Content, Encoding: in.Encoding})
}
