package tool

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

func searchTools() []Tool {
	only := Hints{ReadOnly: true, Idempotent: true}
	return []Tool{
		{
			Name: "file_search", Title: "Search in a file", Category: Search, Hints: only,
			Description: "Find the lines of a file, or of all files in a directory, that match a regular expression.",
			function:    newFunction(searchFiles), synonyms: map[string]string{"path": "file", "pattern": "regex"},
		}, {
			Name: "file_find", Title: "Find files by name", Category: Search, Hints: only,
			Description: "Find files whose names match a pattern such as *.py or src/**/test_*.go.",
			function:    newFunction(findFiles), synonyms: map[string]string{"pattern": "glob"},
		}, {
			Name: "glob", Title: "Find files by pattern", Category: Search, Hints: only,
			Description: "Find files and directories whose paths match a pattern: * and ? within a name, ** for any directories.",
			function:    newFunction(globFiles), synonyms: map[string]string{"glob": "pattern"},
		}, {
			Name: "grep", Title: "Search in files", Category: Search, Hints: only,
			Description: "Search the files of a directory with a regular expression (RE2), with optional context lines. " +
				"Binary files are skipped, and so are .git, node_modules and similar directories unless they are named.",
			function: newFunction(grepFiles),
		},
	}
}

type searchInput struct {
	File  string `json:"file" jsonschema:"a file, or a directory to search recursively"`
	Regex string `json:"regex" jsonschema:"regular expression in RE2 syntax"`
	Sudo  bool   `json:"sudo,omitempty" jsonschema:"ignored; accepted for older clients" default:"false"`
}

type lineMatch struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Text    string `json:"text"`
	Context bool   `json:"context,omitempty"`
}

type searchData struct {
	Matches []lineMatch `json:"matches"`
	Files   int         `json:"files_with_matches"`
	More    bool        `json:"more,omitempty"`
}

func searchFiles(ctx context.Context, s *Session, in searchInput) (Result, error) {
	return s.searchLines(ctx, applet.SearchRequest{Path: in.File, Pattern: in.Regex, Hidden: true})
}

// runSearch runs a search as the user of the session, within its directory if it is confined.
func (s *Session) runSearch(ctx context.Context, r applet.SearchRequest) (applet.SearchResult, error) {
	r.Path = s.absPath(r.Path)
	if _, err := s.checkAccess(ctx, r.Path); err != nil {
		return applet.SearchResult{}, err
	}
	return callApplet[applet.SearchResult](ctx, s, applet.Search, r)
}

// checkAccess returns a file that a program will use by its name, if file calls may use it. The
// target of a link must be accessible, too.
func (s *Session) checkAccess(ctx context.Context, name string) (sandpit.File, error) {
	f, err := s.files.Stat(ctx, name)
	if err == nil && f.LinkTarget != "" {
		_, err = s.files.Stat(ctx, f.LinkTarget)
	}
	return f, err
}

func (s *Session) searchLines(ctx context.Context, r applet.SearchRequest) (Result, error) {
	found, err := s.runSearch(ctx, r)
	if err != nil {
		return Result{}, err
	}
	data := searchData{Matches: []lineMatch{}, Files: found.Matched, More: found.More}
	var b strings.Builder
	for _, m := range found.Matches {
		if line, cut := strings.CutSuffix(m.Text, applet.Cut); cut {
			m.Text = s.secretSet().maskCut(line, false, true) + applet.Cut
		}
		data.Matches = append(data.Matches, lineMatch{m.Path, m.Line, m.Text, m.Context})
		mark := ":"
		if m.Context {
			mark = "-"
		}
		fmt.Fprintf(&b, "%s%s%d%s%s\n", m.Path, mark, m.Line, mark, m.Text)
	}
	if len(found.Matches) == 0 {
		fmt.Fprintf(&b, "No matches in %d files", found.Files)
	}
	return Result{Text: b.String() + moreText(found), Data: data}, nil
}

// moreText returns a note about results that a search left out.
func moreText(found applet.SearchResult) string {
	var notes []string
	if found.More {
		notes = append(notes, "there are more matches: refine the search")
	}
	if found.Unread > 0 {
		notes = append(notes, fmt.Sprintf("%d files or directories could not be read", found.Unread))
	}
	if len(notes) == 0 {
		return ""
	}
	return "\n(" + strings.Join(notes, "; ") + ")"
}

type findInput struct {
	Glob string `json:"glob" jsonschema:"pattern of file names; without a slash it matches in every directory"`
	Path string `json:"path,omitempty" jsonschema:"directory to search" default:"."`
}

func findFiles(ctx context.Context, s *Session, in findInput) (Result, error) {
	return s.findNames(ctx, in.Path, in.Glob)
}

type globInput struct {
	Pattern string `json:"pattern" jsonschema:"pattern of paths, such as **/*.go"`
	Path    string `json:"path,omitempty" jsonschema:"directory to search" default:"."`
}

func globFiles(ctx context.Context, s *Session, in globInput) (Result, error) {
	return s.findNames(ctx, in.Path, in.Pattern)
}

type nameMatch struct {
	Path string `json:"path"`
	Type string `json:"type"`
	Size int64  `json:"size"`
}

type nameData struct {
	Files []nameMatch `json:"files"`
	More  bool        `json:"more,omitempty"`
}

func (s *Session) findNames(ctx context.Context, dir, pattern string) (Result, error) {
	found, err := s.runSearch(ctx, applet.SearchRequest{
		Path: dir, Names: []string{pattern}, Hidden: strings.HasPrefix(pattern, ".") || strings.Contains(pattern, "/."), Limit: maxEntries,
	})
	if err != nil {
		return Result{}, err
	}
	data := nameData{Files: []nameMatch{}, More: found.More}
	var b strings.Builder
	for _, m := range found.Matches {
		kind, end := "file", "\n"
		if m.Dir {
			kind, end = "directory", "/\n"
		}
		data.Files = append(data.Files, nameMatch{m.Path, kind, m.Size})
		b.WriteString(m.Path + end)
	}
	if len(found.Matches) == 0 {
		b.WriteString("No files match")
	}
	return Result{Text: b.String() + moreText(found), Data: data}, nil
}

type grepInput struct {
	Pattern    string `json:"pattern" jsonschema:"regular expression in RE2 syntax"`
	Path       string `json:"path,omitempty" jsonschema:"a directory or a file" default:"."`
	Glob       string `json:"file_glob,omitempty" jsonschema:"only in files whose names match this pattern, such as *.go"`
	Type       string `json:"file_type,omitempty" jsonschema:"only in files with this extension, such as py; with file_glob, both must match"`
	IgnoreCase bool   `json:"case_insensitive,omitempty" jsonschema:"ignore case" default:"false"`
	Context    int    `json:"context,omitempty" jsonschema:"lines before and after each match" default:"0" range:"0,20"`
	Before     int    `json:"before_context,omitempty" jsonschema:"lines before each match" default:"0" range:"0,20"`
	After      int    `json:"after_context,omitempty" jsonschema:"lines after each match" default:"0" range:"0,20"`
	Mode       string `json:"output_mode,omitempty" jsonschema:"what to return" enum:"content,files_with_matches,count" default:"content"`
	Most       int    `json:"max_results,omitempty" jsonschema:"maximum number of lines, or of files if output_mode is not content" default:"50" range:"1,1000"`
	All        bool   `json:"all,omitempty" jsonschema:"include hidden files, .git, node_modules and similar directories" default:"false"`
}

func grepFiles(ctx context.Context, s *Session, in grepInput) (Result, error) {
	r := applet.SearchRequest{
		Path: in.Path, Pattern: in.Pattern, IgnoreCase: in.IgnoreCase, Before: max(in.Context, in.Before), After: max(in.Context, in.After),
		Hidden: in.All, All: in.All, Limit: in.Most,
	}
	if in.Glob != "" {
		r.Names = append(r.Names, in.Glob)
	}
	if in.Type != "" {
		r.Kinds = append(r.Kinds, "*."+strings.TrimPrefix(in.Type, "."))
	}
	if in.Mode == "content" {
		return s.searchLines(ctx, r)
	}
	r.Before, r.After, r.Count = 0, 0, true
	found, err := s.runSearch(ctx, r)
	if err != nil {
		return Result{}, err
	}
	return countText(found, in.Mode == "count"), nil
}

type countData struct {
	Files []fileCount `json:"files"`
	More  bool        `json:"more,omitempty"`
}

type fileCount struct {
	File  string `json:"file"`
	Count int    `json:"count"`
}

// countText lists each file once, with the number of matching lines if counts is true.
func countText(found applet.SearchResult, counts bool) Result {
	data := countData{Files: []fileCount{}, More: found.More}
	for _, m := range found.Matches {
		data.Files = append(data.Files, fileCount{m.Path, m.Count})
	}
	var b strings.Builder
	for _, f := range data.Files {
		b.WriteString(f.File)
		if counts {
			fmt.Fprintf(&b, ":%d", f.Count)
		}
		b.WriteString("\n")
	}
	if len(data.Files) == 0 {
		b.WriteString("No matches")
	}
	return Result{Text: b.String() + moreText(found), Data: data}
}
