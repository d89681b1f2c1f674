package commandscreen

import "path"

// variables are the possible values of the variables of a shell.
type variables map[string][]string

// lookup returns the possible values of a variable, of which there is at least one. PWD is the current
// directory.
func (v variables) lookup(dir currentDir, name string) (values []string, known bool) {
	if values, known = v[name]; known {
		if len(values) == 0 { // an empty list
			return []string{""}, true
		}
		return values, true
	}
	if name == "PWD" && dir != "" {
		return []string{string(dir)}, true
	}
	return []string{string(unknown)}, false
}

// setPositional sets $1 and so on, and returns a function that restores the old values. Nil
// arguments are unknown.
func (v variables) setPositional(args []string) (restore func()) {
	names := []string{"@", "*", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	old := map[string][]string{}
	for _, n := range names {
		old[n] = v[n]
		delete(v, n)
	}
	if args != nil {
		v["@"], v["*"] = args, args
		for i, a := range args[:min(len(args), 9)] {
			v[names[i+2]] = []string{a}
		}
	}
	return func() {
		for _, n := range names {
			if delete(v, n); old[n] != nil {
				v[n] = old[n]
			}
		}
	}
}

// writtenFiles are the contents of the files that the same text writes.
type writtenFiles map[string]string

// read returns the content of a file, which is unknown unless the text writes it.
func (f writtenFiles) read(name string) string {
	if text, ok := f[path.Clean(name)]; ok {
		return text
	}
	return worstTaint(name) + string(unknown)
}

func (f writtenFiles) write(name, text string) { f[path.Clean(name)] = text }
