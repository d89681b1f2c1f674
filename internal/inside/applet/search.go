package applet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// Search is the applet that finds files by name and lines by content.
const Search = "search"

// SearchRequest says what to search for.
type SearchRequest struct {
	// Path is a file, or a directory that is searched with everything below it.
	Path string `json:"path"`
	// Names are patterns of which a file's path below Path must match one: * and ? within a name, ** for any number
	// of directories. A pattern without a slash applies to the file's name. Default: all files.
	Names []string `json:"names,omitempty"`
	// Kinds are further patterns of which one must match as well. Default: all files.
	Kinds []string `json:"kinds,omitempty"`
	// Pattern is a regular expression in Go's syntax that lines must match. Default: the search is by name only.
	Pattern    string `json:"pattern,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	// Before and After are how many lines around a match are returned; at most 20.
	Before int `json:"before,omitempty"`
	After  int `json:"after,omitempty"`
	// Hidden includes files whose names begin with a dot, and All directories that usually contain no source: .git,
	// node_modules, __pycache__, .venv.
	Hidden bool `json:"hidden,omitempty"`
	All    bool `json:"all,omitempty"`
	// Depth is how many levels of directories are searched; 0 means no limit.
	Depth int `json:"depth,omitempty"`
	// Limit is how many matches are returned. Default: 1000; at most 10,000.
	Limit int `json:"limit,omitempty"`
	// Count returns one match for each file, with the number of its matching lines, instead of lines.
	Count bool `json:"count,omitempty"`
}

// SearchResult is the answer of Search.
type SearchResult struct {
	Matches []Match `json:"matches"`
	// Files is how many files were searched, Matched how many of them matched.
	Files   int `json:"files"`
	Matched int `json:"matched"`
	// More is true if there are more matches than Limit allows.
	More bool `json:"more,omitempty"`
	// Unread is how many files and directories could not be read.
	Unread int `json:"unread,omitempty"`
}

// Match is a file, or a line of a file.
type Match struct {
	// Path is relative to the request's path, or the file name if the request's path is a file.
	Path string `json:"path"`
	// Line counts from 1; it is 0 for a file found by name.
	Line int    `json:"line,omitempty"`
	Text string `json:"text,omitempty"`
	// Context is true for a line that does not match itself and is only near a match.
	Context bool  `json:"context,omitempty"`
	Dir     bool  `json:"dir,omitempty"`
	Size    int64 `json:"size,omitempty"`
	// Count is how many lines of the file match, if the request has Count.
	Count int `json:"count,omitempty"`
}

const (
	defaultMatches = 1000
	maxMatches     = 10_000
	maxContext     = 20
	// maxLine bounds the part of a line that is searched, in bytes; maxText bounds the part that is returned.
	maxLine = 64 << 10
	maxText = 2000
	// textSample is how much of a file is read to decide whether it is text, in bytes.
	textSample = 8 << 10
)

// skippedDirs are directories that usually contain no source.
var skippedDirs = []string{".git", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache"} //nolint:gochecknoglobals // a constant

func searchFiles(ctx context.Context, r SearchRequest) (SearchResult, error) {
	s, err := newSearcher(ctx, r)
	if err != nil {
		return SearchResult{}, err
	}
	if s.Path, err = filepath.EvalSymlinks(s.Path); err != nil { // WalkDir does not follow a link
		return SearchResult{}, err
	}
	info, err := os.Stat(s.Path)
	if err != nil {
		return SearchResult{}, err
	}
	switch {
	case info.IsDir():
		err = filepath.WalkDir(s.Path, s.visitEntry)
	case info.Mode().IsRegular():
		err = s.searchFile(info)
	default:
		err = sandpit.Errorf(sandpit.Invalid, "%s is neither a file nor a directory", s.Path)
	}
	if errors.Is(err, errLimitReached) {
		err = nil
	}
	return s.result, err
}

// searchFile searches a request's path that is a file. Its name matters only for a search by name.
func (s *searcher) searchFile(info fs.FileInfo) error {
	if s.content != nil {
		return s.searchContent(s.Path, info.Name())
	}
	if !s.matchesName(info.Name()) {
		s.result.Files++
		return nil
	}
	return s.addFile(info.Name(), fs.FileInfoToDirEntry(info))
}

// errLimitReached ends a search that has found Limit matches.
var errLimitReached = errors.New("enough was found")

type searcher struct {
	SearchRequest
	ctx     context.Context //nolint:containedctx // one search
	names   []*regexp.Regexp
	kinds   []*regexp.Regexp
	content *regexp.Regexp
	result  SearchResult
}

func newSearcher(ctx context.Context, r SearchRequest) (*searcher, error) {
	s := &searcher{SearchRequest: r, ctx: ctx, result: SearchResult{Matches: []Match{}}}
	if s.Limit <= 0 {
		s.Limit = defaultMatches
	}
	s.Limit = min(s.Limit, maxMatches)
	s.Before, s.After = min(max(s.Before, 0), maxContext), min(max(s.After, 0), maxContext)
	if s.Path == "" {
		s.Path = "."
	}
	var err error
	if s.names, err = globPatterns(r.Names); err != nil {
		return nil, err
	}
	if s.kinds, err = globPatterns(r.Kinds); err != nil {
		return nil, err
	}
	if r.Pattern == "" {
		return s, nil
	}
	pattern := r.Pattern
	if r.IgnoreCase {
		pattern = "(?i)" + pattern
	}
	if s.content, err = regexp.Compile(pattern); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "pattern: %w", err)
	}
	return s, nil
}

func (s *searcher) visitEntry(p string, e fs.DirEntry, err error) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	rel, relErr := filepath.Rel(s.Path, p)
	if relErr != nil || rel == "." {
		return errors.Join(relErr, err) // an unreadable start directory is an error
	}
	if err != nil {
		s.result.Unread++
		return nil //nolint:nilerr // counted; the rest can be searched
	}
	if e.IsDir() && !s.entersDir(e.Name()) {
		return filepath.SkipDir
	}
	if !s.Hidden && strings.HasPrefix(e.Name(), ".") {
		return nil
	}
	if s.Depth > 0 && strings.Count(rel, "/") >= s.Depth {
		if e.IsDir() {
			return filepath.SkipDir
		}
		return nil
	}
	if !s.matchesName(rel) || s.content != nil && !e.Type().IsRegular() {
		return nil
	}
	if s.content == nil {
		return s.addFile(rel, e)
	}
	if err := s.searchContent(p, rel); err != nil {
		if errors.Is(err, errLimitReached) || s.ctx.Err() != nil {
			return err
		}
		s.result.Unread++
	}
	return nil
}

func (s *searcher) entersDir(name string) bool {
	return (s.Hidden || !strings.HasPrefix(name, ".")) && (s.All || !slices.Contains(skippedDirs, name))
}

func (s *searcher) matchesName(rel string) bool {
	return matchesAny(s.names, rel) && matchesAny(s.kinds, rel)
}

// matchesAny reports whether a path matches one of the patterns, or there are no patterns.
func matchesAny(patterns []*regexp.Regexp, rel string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(re *regexp.Regexp) bool { return re.MatchString(rel) })
}

func (s *searcher) addFile(rel string, e fs.DirEntry) error {
	s.result.Files++
	m := Match{Path: strings.ToValidUTF8(rel, "?"), Dir: e.IsDir()}
	if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
		m.Size = info.Size()
	}
	s.result.Matched++
	return s.addMatch(m)
}

func (s *searcher) addMatch(m Match) error {
	if len(s.result.Matches) == s.Limit {
		s.result.More = true
		return errLimitReached
	}
	s.result.Matches = append(s.result.Matches, m)
	return nil
}

// searchContent searches the lines of a file. It skips binary files.
func (s *searcher) searchContent(p, rel string) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, maxLine)
	head, err := r.Peek(textSample)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	s.result.Files++
	if bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	if s.Count {
		return s.countLines(r, strings.ToValidUTF8(rel, "?"))
	}
	return s.findLines(r, strings.ToValidUTF8(rel, "?"))
}

// countLines counts the matching lines of a file.
func (s *searcher) countLines(r *bufio.Reader, rel string) error {
	m := Match{Path: rel}
	for n := 1; ; n++ {
		if n%1000 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		line, err := readLine(r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if s.content.Match(line) {
			m.Count++
		}
	}
	if m.Count == 0 {
		return nil
	}
	s.result.Matched++
	return s.addMatch(m)
}

func (s *searcher) findLines(r *bufio.Reader, rel string) error {
	var before []Match
	after, matched := 0, false
	for n := 1; ; n++ {
		if n%1000 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		line, err := readLine(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		m := Match{Path: rel, Line: n}
		hit := s.content.Match(line)
		if !hit && after == 0 && s.Before == 0 {
			continue
		}
		m.Text, m.Context = cutLine(line), !hit
		switch {
		case hit:
			if !matched {
				matched = true
				s.result.Matched++
			}
			for _, b := range append(before, m) {
				if err := s.addMatch(b); err != nil {
					return err
				}
			}
			before, after = nil, s.After
		case after > 0:
			after--
			if err := s.addMatch(m); err != nil {
				return err
			}
		default:
			before = append(before, m)
			before = before[max(0, len(before)-s.Before):]
		}
	}
}

// readLine returns a line without its end, valid until the next call. It drops the part of a line beyond maxLine.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, more, err := r.ReadLine()
	for more && err == nil {
		_, more, err = r.ReadLine()
	}
	return line, err
}

// Cut ends a line that was shortened.
const Cut = "..."

func cutLine(line []byte) string {
	text := strings.ToValidUTF8(string(line[:min(len(line), maxText)]), "?")
	if len(line) > maxText {
		text += Cut
	}
	return text
}

func globPatterns(globs []string) ([]*regexp.Regexp, error) {
	var list []*regexp.Regexp
	for _, glob := range globs {
		re, err := globPattern(glob)
		if err != nil {
			return nil, err
		}
		list = append(list, re)
	}
	return list, nil
}

// globPattern returns a regular expression for the paths that match a pattern.
func globPattern(glob string) (*regexp.Regexp, error) {
	if glob == "" || len(glob) > 4096 || !utf8.ValidString(glob) {
		return nil, sandpit.Errorf(sandpit.Invalid, "pattern %.100q: want text of 1 to 4096 bytes", glob)
	}
	glob = strings.TrimPrefix(path.Clean(glob), "/")
	var re strings.Builder
	re.WriteString(`^`)
	if !strings.Contains(glob, "/") {
		re.WriteString(`(?:.*/)?`)
	}
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case strings.HasPrefix(glob[i:], "**/"):
			re.WriteString(`(?:.*/)?`)
			i += 2
		case strings.HasPrefix(glob[i:], "**"):
			re.WriteString(`.*`)
			i++
		case c == '*':
			re.WriteString(`[^/]*`)
		case c == '?':
			re.WriteString(`[^/]`)
		case c == '[' || c == '{':
			n, text := translateGroup(glob[i:])
			re.WriteString(text)
			i += n - 1
		default:
			re.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	re.WriteString(`$`)
	compiled, err := regexp.Compile(re.String())
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "pattern %.100q: %w", glob, err)
	}
	return compiled, nil
}

// translateGroup translates [abc], [!abc] and {one,two} at the beginning of a pattern, and returns the length of the
// group. An incomplete group is translated literally.
func translateGroup(glob string) (length int, text string) {
	closer := map[byte]string{'[': "]", '{': "}"}[glob[0]]
	end := strings.Index(glob, closer)
	if end < 2 {
		return 1, regexp.QuoteMeta(glob[:1])
	}
	inner := glob[1:end]
	if glob[0] == '{' {
		words := strings.Split(inner, ",")
		for i, w := range words {
			words[i] = regexp.QuoteMeta(w)
		}
		return end + 1, "(?:" + strings.Join(words, "|") + ")"
	}
	not := ""
	if strings.HasPrefix(inner, "!") || strings.HasPrefix(inner, "^") {
		not, inner = "^", inner[1:]
	}
	return end + 1, "[" + not + strings.NewReplacer(`\`, `\\`, `[`, `\[`, `^`, `\^`).Replace(inner) + "]"
}
