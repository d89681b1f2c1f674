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
			Description: "Read a text file, or some of its lines.",
			function:    newFunction(readFile), synonyms: file,
		}, {
			Name: "file_write", Title: "Write a file", Category: File, Hints: Hints{Destructive: true, Idempotent: true},
			Description: "Write a file, replacing its contents or appending to them. Missing directories are created.",
			function:    newFunction(writeFile), synonyms: file,
		}, {
			Name: "file_edit", Title: "Edit a file", Category: File, Hints: Hints{Destructive: true},
			Description: "Replace a text in a file. It must occur exactly once, unless replace_all is true.",
			function:    newFunction(editFile), synonyms: file,
		}, {
			Name: "file_delete", Title: "Delete a file", Category: File, Hints: Hints{Destructive: true, Idempotent: true},
			Description: "Delete a file, or a directory with its contents.",
			function:    newFunction(deleteFile), synonyms: map[string]string{"file": "path", "file_path": "path"},
		}, {
			Name: "file_list", Title: "List a directory", Category: File, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "List the entries of a directory with types and sizes.",
			function:    newFunction(listFiles), synonyms: map[string]string{"directory": "path", "dir": "path"},
		}, {
			Name: "file_download", Title: "Get a file", Category: File, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "Return the contents of a file: text as is, other data in Base64 after the mark [BASE64].",
			function:    newFunction(downloadFile), synonyms: map[string]string{"file": "path", "file_path": "path"},
		}, {
			Name: "file_upload", Title: "Put a file", Category: File, Hints: Hints{Destructive: true, Idempotent: true},
			Description: "Write a file with contents in Base64 or as text.",
			function:    newFunction(uploadFile), synonyms: map[string]string{"file": "path", "file_path": "path"},
		},
	}
}

type readInput struct {
	File  string `json:"file" jsonschema:"path of the file, relative to the working directory or absolute"`
	Start *int   `json:"start_line,omitempty" jsonschema:"first line, starting at 0" range:"0,"`
	End   *int   `json:"end_line,omitempty" jsonschema:"end line, exclusive, starting at 0" range:"0,"`
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
			firstAllowed(ctx, "use file_download to get it in Base64", "use a command such as base64, file or strings"))
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
		return Result{}, sandpit.Errorf(sandpit.Invalid, "lines %d to %d do not exist: the file has %d lines", start, end, len(lines))
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
	Content  string `json:"content" jsonschema:"the contents"`
	Encoding string `json:"encoding,omitempty" jsonschema:"encoding of content" enum:"utf-8,base64" default:"utf-8"`
	Append   bool   `json:"append,omitempty" jsonschema:"add to the end of the file" default:"false"`
	Sudo     bool   `json:"sudo,omitempty" jsonschema:"write as root of the sandbox" default:"false"`
}

type writeData struct {
	File  string `json:"file"`
	Bytes int    `json:"bytes"`
	Page  *Page  `json:"page,omitempty"`
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
	Old  string `json:"old_str" jsonschema:"text to replace, exactly as in the file"`
	New  string `json:"new_str" jsonschema:"replacement text; empty removes old_str"`
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
			"it must match the file exactly, including spaces and tabs")
	case count > 1 && !in.All:
		return Result{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Conflict, "old_str occurs %d times in %s, in the lines %s", count, in.File, linesOf(text, in.Old)),
			"add more of the surrounding text, or set replace_all")
	}
	if err := files.WriteFile(ctx, in.File, strings.NewReader(strings.ReplaceAll(text, in.Old, in.New))); err != nil {
		return Result{}, err
	}
	return Result{
		Text: fmt.Sprintf("Replaced %d occurrences in %s", count, in.File),
		Data: editData{File: s.absPath(in.File), Replaced: count},
	}, nil
}

// linesOf lists the lines, starting at 1, in which a text begins, up to 20.
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
	Recursive bool   `json:"recursive,omitempty" jsonschema:"delete a directory with its contents" default:"false"`
}

func deleteFile(ctx context.Context, s *Session, in deleteInput) (Result, error) {
	p := s.absPath(in.Path)
	if p == "/" || p == s.o.Dir || strings.HasPrefix(s.o.Dir, p+"/") {
		return Result{}, sandpit.Errorf(sandpit.PermissionDenied, "%s is the working directory or contains it", in.Path)
	}
	f, err := s.files.Stat(ctx, p)
	if err != nil {
		return Result{}, err
	}
	if f.Mode.IsDir() && !in.Recursive {
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "%s is a directory", in.Path), "set recursive to delete it with its contents")
	}
	if err := s.files.Remove(ctx, p); err != nil {
		return Result{}, err
	}
	return Result{Text: "Deleted " + in.Path}, nil
}

type listInput struct {
	Path      string `json:"path,omitempty" jsonschema:"the directory" default:"."`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"include subdirectories" default:"false"`
	Hidden    bool   `json:"show_hidden,omitempty" jsonschema:"include names that begin with a dot" default:"false"`
	Depth     int    `json:"max_depth,omitempty" jsonschema:"depth of a recursive list" default:"3" range:"1,20"`
	Sort      string `json:"sort_by,omitempty" jsonschema:"sort order" enum:"name,size,modified,type" default:"name"`
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

// maxEntries limits the entries of a list.
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
	fmt.Fprintf(&b, "%d entries", d.Total)
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
			sandpit.Errorf(sandpit.Exhausted, "%s has %d bytes and is not text: the limit is %d bytes", in.Path, len(data), maxText/4*3),
			"inspect it with a command, or copy it out with sandpit cp")
	}
	return Result{Text: "[BASE64]" + base64.StdEncoding.EncodeToString(data), Data: told}, nil
}

type uploadInput struct {
	Path    string `json:"path" jsonschema:"path of the file to write"`
	Content string `json:"content" jsonschema:"the contents"`
	// Encoding is base64 by default, for binary files.
	Encoding string `json:"encoding,omitempty" jsonschema:"encoding of content" enum:"utf-8,base64" default:"base64"`
}

func uploadFile(ctx context.Context, s *Session, in uploadInput) (Result, error) {
	return writeFile(ctx, s, writeInput{File: in.Path, Content: in.Content, Encoding: in.Encoding})
}
