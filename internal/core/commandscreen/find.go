package commandscreen

import (
	"slices"
	"strings"
)

// search is a call of find.
type search struct {
	starts   []string
	filtered bool // by more than the type of the files
	deletes  bool
	execs    [][]string // the commands that it runs; none is empty
}

func parseFind(args []string) (f search) {
	i := 0
	for ; i < len(args); i++ {
		a := args[i]
		if a == "-D" {
			i++
			continue
		}
		if a == "-H" || a == "-L" || a == "-P" || strings.HasPrefix(a, "-O") {
			continue
		}
		if strings.HasPrefix(a, "-") || a == "(" || a == "!" {
			break
		}
		f.starts = append(f.starts, a)
	}
	if len(f.starts) == 0 {
		f.starts = []string{"."}
	}
	for i = min(i, len(args)); i < len(args); i++ {
		switch a := args[i]; {
		case a == "-delete":
			f.deletes = true
		case a == "-prune":
			f.filtered = false
		case slices.Contains([]string{"-exec", "-execdir", "-ok", "-okdir"}, a):
			end := i + 1
			for end < len(args) && args[end] != ";" && args[end] != "+" {
				end++
			}
			if inner := args[i+1 : end]; len(inner) > 0 {
				f.execs = append(f.execs, inner)
			}
			i = end
		case isFilter(a) && i+1 < len(args):
			negated := i > 0 && (args[i-1] == "!" || args[i-1] == "-not")
			f.filtered = f.filtered || (!negated && !allWild(args[i+1]))
			i++
		}
	}
	return f
}

func isFilter(a string) bool {
	return slices.Contains([]string{
		"-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex", "-lname", "-user", "-group",
		"-uid", "-gid", "-size", "-perm", "-mtime", "-mmin", "-atime", "-amin", "-ctime", "-cmin", "-newer",
		"-newermt", "-inum", "-samefile", "-links", "-maxdepth",
	}, a)
}

// checkFind warns of a search that destroys what it finds.
func (c ruleChecker) checkFind(args []string) {
	f := parseFind(args[1:])
	place := c.dir.worstPlace(f.starts)
	destroys := f.deletes
	for _, inner := range f.execs {
		destroys = destroys || slices.Contains([]string{"rm", "shred", "unlink", "truncate"}, baseName(inner[0]))
	}
	switch {
	case !destroys:
	case !f.filtered:
		c.addPlaceFinding(place, "find-root", "it deletes", args)
	case place == system:
		c.addFinding(finding{Warn, "find-root", "it deletes files all over the system"}, args)
	}
}

// foundArgs returns what find finds, for the commands that it runs.
func (f search) foundArgs() string {
	if f.filtered {
		return string(isSet)
	}
	return strings.Join(f.starts, "\n")
}

// checkFound checks the commands that find runs.
func (s *state) checkFound(args []string) {
	f := parseFind(args[1:])
	for _, inner := range f.execs {
		s.checkCommand(withInput(inner, f.foundArgs()), "")
	}
}
