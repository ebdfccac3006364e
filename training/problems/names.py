"""First names with their pronouns. None ends in s (possessives stay plain) or is another word."""

from __future__ import annotations

from typing import NamedTuple

_WOMEN = """
Abby Ada Aisha Alice Alma Amara Amelia Amina Amy Ana Anita Anna Anya Asha Astrid Audrey Aya
Beatrice Bella Beth Bianca Brenda Camila Carla Carmen Carol Cecilia Celia Chloe Clara Cora
Dana Daniela Diana Dora Edith Elena Elif Elisa Eliza Ella Ellen Elsa Emily Emma Erica Esther Eva
Evelyn Farah Fatima Fiona Flora Freya Gina Gloria Greta Hana Hannah Helen Hilda Ida Ingrid
Irene Isabel Ivana Jana Jane Jasmin Jenna Jessica Joanna Judith Julia Karen Kate Katia Kayla Kira
Laila Lara Laura Lea Leila Lena Leonie Lina Linda Lisa Lola Lucia Lucy Luna Maria Mariam Martha
Maya Megan Mia Mila Mina Miriam Molly Mona Nadia Naomi Natalie Nina Nora Olga Olivia Paula Petra
Priya Rachel Rita Rosa Ruth Sadie Sally Samira Sara Selma Sonia Sophie Susan Tamara Tanya Tara
Tessa Tina Uma Ursula Vera Wanda Wendy Yara Yuki Zara Zoe
"""
_MEN = """
Aaron Abdul Adam Adrian Ahmed Alan Albert Alex Ali Amir Andrew Anton Arthur Arun Ben Bernard
Brian Bruno Caleb Carl Chen Clark Cole Colin Conrad Daniel David Denzel Derek Diego Dmitri
Dylan Eddie Edgar Edwin Eli Elliot Emil Eric Ethan Evan Felipe Felix Finn Frank Fred Gavin George
Gerald Goran Gordon Hamid Harold Harry Hassan Hector Henry Hugo Ian Ibrahim Igor Ivan Jack Jacob
Jamal Jan Jason Javier Jerome Joe Joel John Jonah Jorge Joseph Juan Julian Kamal Karim Kevin Kofi
Kurt Lee Leo Leon Liam Logan Luca Luke Malik Marco Mario Martin Mateo Max Michael Miguel Milan
Mohamed Nathan Neil Noah Noel Nolan Oliver Omar Oscar Otto Owen Pablo Patrick Paul
Pedro Peter Philip Rafael Raj Ralph Ravi Ricardo Robert Roman Ronald Ruben Ryan
Samir Samuel Sean Sergio Simon Stefan Steven Taro Theo Tim Tobin Tom Tomek Tony Victor Vikram
Vincent Walter Yusuf Zane
"""


class Person(NamedTuple):
    name: str
    he: str
    his: str
    him: str


PEOPLE: tuple[Person, ...] = tuple(
    Person(name, *pronouns)
    for names, pronouns in ((_WOMEN, ("she", "her", "her")), (_MEN, ("he", "his", "him")))
    for name in names.split()
)
