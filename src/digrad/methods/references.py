"""The publications of the methods: ``BIBTEX`` maps the ``reference`` of a method to its BibTeX entry.

Only what is known for certain is given: an entry without a DOI or without pages lacks them for that reason.

>>> BIBTEX["bo2026provably"].splitlines()[0]
'@misc{bo2026provably,'
"""

#: Publications that were not opened: the method follows what others print of it. Checked by a test against its own
#: docstring, but not against the original.
NOT_OPENED = (
    "cattivelli2010diffusion",  # as X. Lian et al., NeurIPS 2017, who note that the order can be swapped
    "nedic2015distributed",
    "scutari2019distributed",
    "xi2018addopt",
    "xu2015augmented",  # as the ATC variant of push-pull
)

_ENTRIES = r"""
@inproceedings{assran2019stochastic,
  title = {Stochastic Gradient Push for Distributed Deep Learning},
  author = {Assran, Mahmoud and Loizou, Nicolas and Ballas, Nicolas and Rabbat, Michael},
  booktitle = {International Conference on Machine Learning},
  year = {2019},
  eprint = {1811.10792},
  archiveprefix = {arXiv},
}

@misc{bo2026provably,
  title = {Provably Convergent Decentralized Optimization over Directed Graphs under Generalized Smoothness},
  author = {Bo, Yanan and Wang, Yongqiang},
  year = {2026},
  eprint = {2601.03566},
  archiveprefix = {arXiv},
}

@article{cattivelli2010diffusion,
  title = {Diffusion {LMS} Strategies for Distributed Estimation},
  author = {Cattivelli, Federico S. and Sayed, Ali H.},
  journal = {IEEE Transactions on Signal Processing},
  volume = {58},
  number = {3},
  pages = {1035--1048},
  year = {2010},
}

@article{cauchy1847methode,
  title = {M\'ethode g\'en\'erale pour la r\'esolution des syst\`emes d'\'equations simultan\'ees},
  author = {Cauchy, Augustin-Louis},
  journal = {Comptes Rendus de l'Acad\'emie des Sciences},
  volume = {25},
  pages = {536--538},
  year = {1847},
}

@inproceedings{chen2023convergence,
  title = {On the Convergence of Decentralized Adaptive Gradient Methods},
  author = {Chen, Xiangyi and Karimi, Belhal and Zhao, Weijie and Li, Ping},
  booktitle = {Asian Conference on Machine Learning},
  series = {Proceedings of Machine Learning Research},
  volume = {189},
  pages = {217--232},
  year = {2023},
  eprint = {2109.03194},
  archiveprefix = {arXiv},
}

@inproceedings{cutkosky2020momentum,
  title = {Momentum Improves Normalized {SGD}},
  author = {Cutkosky, Ashok and Mehta, Harsh},
  booktitle = {International Conference on Machine Learning},
  year = {2020},
}

@inproceedings{jiang2017collaborative,
  title = {Collaborative Deep Learning in Fixed Topology Networks},
  author = {Jiang, Zhanhong and Balu, Aditya and Hegde, Chinmay and Sarkar, Soumik},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2017},
  eprint = {1706.07880},
  archiveprefix = {arXiv},
}

@article{jiang2021consensus,
  title = {On Consensus-Optimality Trade-offs in Collaborative Deep Learning},
  author = {Jiang, Zhanhong and Balu, Aditya and Hegde, Chinmay and Sarkar, Soumik},
  journal = {Frontiers in Artificial Intelligence},
  volume = {4},
  pages = {573731},
  year = {2021},
  eprint = {1805.12120},
  archiveprefix = {arXiv},
}

@misc{jiang2025decentralized,
  title = {Decentralized Relaxed Smooth Optimization with Gradient Descent Methods},
  author = {Jiang, Zhanhong and Balu, Aditya and Sarkar, Soumik},
  year = {2025},
  eprint = {2508.08413},
  archiveprefix = {arXiv},
}

@inproceedings{kingma2015adam,
  title = {Adam: A Method for Stochastic Optimization},
  author = {Kingma, Diederik P. and Ba, Jimmy},
  booktitle = {International Conference on Learning Representations},
  year = {2015},
  eprint = {1412.6980},
  archiveprefix = {arXiv},
}

@misc{luo2025decentralized,
  title = {Decentralized Stochastic Nonconvex Optimization under the Relaxed Smoothness},
  author = {Luo, Luo and Cui, Xue and Jia, Tingkai and Chen, Cheng},
  year = {2025},
  eprint = {2509.08726},
  archiveprefix = {arXiv},
}

@article{nedic2009distributed,
  title = {Distributed Subgradient Methods for Multi-Agent Optimization},
  author = {Nedi{\'c}, Angelia and Ozdaglar, Asuman},
  journal = {IEEE Transactions on Automatic Control},
  volume = {54},
  number = {1},
  pages = {48--61},
  year = {2009},
}

@article{nedic2015distributed,
  title = {Distributed Optimization over Time-Varying Directed Graphs},
  author = {Nedi{\'c}, Angelia and Olshevsky, Alex},
  journal = {IEEE Transactions on Automatic Control},
  volume = {60},
  number = {3},
  pages = {601--615},
  year = {2015},
}

@article{nedic2017achieving,
  title = {Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs},
  author = {Nedi{\'c}, Angelia and Olshevsky, Alex and Shi, Wei},
  journal = {SIAM Journal on Optimization},
  volume = {27},
  number = {4},
  pages = {2597--2633},
  year = {2017},
}

@article{pu2021distributed,
  title = {Distributed Stochastic Gradient Tracking Methods},
  author = {Pu, Shi and Nedi{\'c}, Angelia},
  journal = {Mathematical Programming},
  volume = {187},
  pages = {409--457},
  year = {2021},
}

@article{pu2021push,
  title = {Push-Pull Gradient Methods for Distributed Optimization in Networks},
  author = {Pu, Shi and Shi, Wei and Xu, Jinming and Nedi{\'c}, Angelia},
  journal = {IEEE Transactions on Automatic Control},
  volume = {66},
  number = {1},
  pages = {1--16},
  year = {2021},
  eprint = {1810.06653},
  archiveprefix = {arXiv},
}

@article{scutari2019distributed,
  title = {Distributed Nonconvex Constrained Optimization over Time-Varying Digraphs},
  author = {Scutari, Gesualdo and Sun, Ying},
  journal = {Mathematical Programming},
  volume = {176},
  pages = {497--544},
  year = {2019},
}

@article{xi2018addopt,
  title = {{ADD-OPT}: Accelerated Distributed Directed Optimization},
  author = {Xi, Chenguang and Xin, Ran and Khan, Usman A.},
  journal = {IEEE Transactions on Automatic Control},
  volume = {63},
  number = {5},
  pages = {1329--1339},
  year = {2018},
}

@article{xin2018linear,
  title = {A Linear Algorithm for Optimization over Directed Graphs with Geometric Convergence},
  author = {Xin, Ran and Khan, Usman A.},
  journal = {IEEE Control Systems Letters},
  volume = {2},
  number = {3},
  pages = {315--320},
  year = {2018},
  eprint = {1803.02503},
  archiveprefix = {arXiv},
}

@article{xin2019frost,
  title = {{FROST} -- Fast Row-Stochastic Optimization with Uncoordinated Step-Sizes},
  author = {Xin, Ran and Xi, Chenguang and Khan, Usman A.},
  journal = {EURASIP Journal on Advances in Signal Processing},
  volume = {2019},
  pages = {1},
  year = {2019},
}

@inproceedings{xu2015augmented,
  title = {Augmented Distributed Gradient Methods for Multi-Agent Optimization under Uncoordinated
           Constant Stepsizes},
  author = {Xu, Jinming and Zhu, Shanying and Soh, Yeng Chai and Xie, Lihua},
  booktitle = {IEEE Conference on Decision and Control},
  year = {2015},
}

@misc{yu2025decentralized,
  title = {Decentralized Nonconvex Optimization under Heavy-Tailed Noise: Normalization and Optimal
           Convergence},
  author = {Yu, Shuhua and Jakoveti{\'c}, Du{\v s}an and Kar, Soummya},
  year = {2025},
  eprint = {2505.03736},
  archiveprefix = {arXiv},
}

@inproceedings{zhang2020why,
  title = {Why Gradient Clipping Accelerates Training: A Theoretical Justification for Adaptivity},
  author = {Zhang, Jingzhao and He, Tianxing and Sra, Suvrit and Jadbabaie, Ali},
  booktitle = {International Conference on Learning Representations},
  year = {2020},
  eprint = {1905.11881},
  archiveprefix = {arXiv},
}
"""


def _by_key(entries: str) -> dict[str, str]:
    listed = entries.strip().split("\n\n")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in listed}


BIBTEX: dict[str, str] = _by_key(_ENTRIES)
