package hostpath

import "testing"

func TestHomeOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"root:x:0:0:root:/root:/bin/bash\n":                     "/root",
		"ann:x:1000:1000:Ann,,,:/home/ann:/bin/bash\n":          "/home/ann",
		"bob:x:1001:1001::/srv/people/bob/:/bin/sh":             "/srv/people/bob",
		"daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n":     "",
		"nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n": "",
		"broken:x:1000:1000:home:relative:/bin/sh":              "",
		"number:x:many:1000::/home/x:/bin/sh":                   "",
		"short:x:1000":                                          "", "": "", "+::::::": "",
	} {
		got, ok := homeOf(line)
		if got != want || ok != (want != "") {
			t.Errorf("homeOf(%q) = %q, %v; want %q", line, got, ok, want)
		}
	}
}

func FuzzHomeOf(f *testing.F) {
	f.Add("ann:x:1000:1000::/home/ann:/bin/sh")
	f.Fuzz(func(t *testing.T, line string) {
		if home, ok := homeOf(line); ok && home[0] != '/' {
			t.Errorf("home %q", home)
		}
	})
}
